"""Modules without weight decay."""

from __future__ import annotations

from torch import nn


class NoWeightDecay(nn.Module):
    """Base of modules without weight decay, as published: norms and radial bases."""


class LayerNorm(nn.LayerNorm, NoWeightDecay):
    """torch's layer norm, without weight decay."""


class RMSNorm(nn.RMSNorm, NoWeightDecay):
    """torch's RMS norm, without weight decay."""
