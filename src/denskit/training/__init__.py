"""Training: settings of a run, the loop, checkpoints, logs."""
