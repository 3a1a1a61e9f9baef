"""One file a format: from files to structures in eV and Å."""
