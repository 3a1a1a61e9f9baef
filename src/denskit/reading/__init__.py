"""Files from outside, read without trusting them: bounded in memory and time, with errors that say where."""
