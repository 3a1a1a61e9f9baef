"""Named datasets: what is particular to them beyond their files."""
