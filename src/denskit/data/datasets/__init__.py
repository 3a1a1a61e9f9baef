"""Named datasets: their files, splits and conventions."""
