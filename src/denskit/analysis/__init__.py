"""Plots and the report of a run: files that a person reads, made from files that a run wrote."""
