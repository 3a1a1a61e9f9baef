"""Training: a run's configuration, the loop, its checkpoints and logs, and the evaluation of what came out."""
