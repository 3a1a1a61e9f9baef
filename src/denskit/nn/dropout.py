"""Dropout that keeps equivariance, and stochastic depth over whole structures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class EquivariantDropout(nn.Module):
    """Dropout of whole channels: all orders m of a degree, channel and atom together."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Sequence[Tensor]) -> list[Tensor]:
        """x[l] [N, 2l+1, C_l] to the same shapes."""
        if not self.training or self.probability == 0:
            return list(x)
        masks = [F.dropout(x_l.new_ones(len(x_l), 1, x_l.shape[-1]), self.probability) for x_l in x]
        return [x_l * mask for x_l, mask in zip(x, masks, strict=True)]


class StochasticDepth(nn.Module):
    """Stochastic depth (Huang et al. 2016): drops a residual branch for whole structures."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Sequence[Tensor], system_index: Tensor, num_systems: int) -> list[Tensor]:
        """x[l] [N, 2l+1, C_l] to the same shapes; system_index [N] is the structure of each atom."""
        if not self.training or self.probability == 0:
            return list(x)
        keep = F.dropout(torch.ones(num_systems, dtype=x[0].dtype, device=x[0].device), self.probability)
        return [x_l * keep[system_index][:, None, None] for x_l in x]
