"""Layers of two or more models."""
