"""Modules without weight decay."""

from __future__ import annotations

from torch import nn


class NoWeightDecay(nn.Module):
    """Base of modules without weight decay, as published: norms and radial bases."""
