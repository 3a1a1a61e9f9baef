"""Active learning: which frames to label next, and their labels."""

from denskit.active.labelling import label
from denskit.active.selection import Selection, select

__all__ = ["Selection", "label", "select"]
