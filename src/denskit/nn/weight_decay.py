"""Which modules weight decay leaves alone."""

from __future__ import annotations

from torch import nn


class NoWeightDecay(nn.Module):
    """A module none of whose parameters are decayed, as published: norms, the radial basis."""
