"""Benchmarks: our models timed beside other formulations of the same functions, with the same weights."""
