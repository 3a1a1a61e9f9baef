"""Judging models and methods: studies of variants over seeds and sizes of data."""
