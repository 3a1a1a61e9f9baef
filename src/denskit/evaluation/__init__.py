"""Judging models and methods: errors, predictions, stability of crystals, studies of variants over seeds."""
