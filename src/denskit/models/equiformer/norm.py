"""Equivariant layer normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from denskit.nn.weight_decay import NoWeightDecay

EPS = 1e-5


class EquivariantLayerNorm(NoWeightDecay):
    """Layer norm of each degree on its own (Equiformer, Liao and Smidt 2023).

    x_l / sqrt(mean over channels and orders of x_l^2 + eps) * weight_l; scalars are centred first and get a bias.
    """

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(c)) for c in channels)
        self.bias = nn.Parameter(torch.zeros(channels[0]))

    def forward(self, x: Sequence[Tensor]) -> list[Tensor]:
        """x[l] [N, 2l+1, C_l] to the same shapes; degrees absent from x are left out."""
        out = []
        for l, (x_l, weight) in enumerate(zip(x, self.weights, strict=False)):
            centred = x_l - x_l.mean(-1, keepdim=True) if l == 0 else x_l
            scale = (centred.square().mean((1, 2), keepdim=True) + EPS).rsqrt()
            out.append(centred * (scale * weight))
        out[0] = out[0] + self.bias
        return out


class MergedLayerNorm(EquivariantLayerNorm):
    """Layer norm with one scale for all degrees (EquiformerV3's merged layer norm).

    x_l / sqrt(mean over degrees of (mean over channels and orders of x_l^2) + eps) * weight_l; scalars are centred
    first and get a bias.  Degrees that vanish by symmetry (l = 1 at the carbon of CH4, all at an atom of a perfect
    crystal) keep their size relative to the scalars: unlike the layer norm, this norm is smooth there.

    scalars_apart: divide scalars by their own scale: they then do not depend on higher degrees.
    """

    def __init__(self, channels: Sequence[int], *, scalars_apart: bool = False) -> None:
        super().__init__(channels)
        self.scalars_apart = scalars_apart

    def forward(self, x: Sequence[Tensor]) -> list[Tensor]:
        """x[l] [N, 2l+1, C_l] to the same shapes; degrees absent from x are left out."""
        centred = [x[0] - x[0].mean(-1, keepdim=True), *x[1:]]
        squares = torch.stack([x_l.square().mean((1, 2), keepdim=True) for x_l in centred])
        merged = (squares.mean(0) + EPS).rsqrt()
        scales = [(squares[0] + EPS).rsqrt() if self.scalars_apart else merged, *[merged] * (len(x) - 1)]
        out = [x_l * (scale * weight) for x_l, scale, weight in zip(centred, scales, self.weights, strict=False)]
        out[0] = out[0] + self.bias
        return out


class NoNorm(nn.Module):
    """No normalisation: the paper's variant without layer norm."""

    def forward(self, x: Sequence[Tensor]) -> list[Tensor]:
        """The unchanged features."""
        return list(x)
