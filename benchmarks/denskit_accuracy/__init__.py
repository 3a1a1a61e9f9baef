"""Errors of Denskit, MACE and NequIP after equal processor time on the same frames."""
