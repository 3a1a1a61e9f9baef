"""Activations with unit second moment under a normal input, and the gate of equivariant features.

The factors are those of the published Equiformer weights: e3nn 0.4.4 estimated them by Monte Carlo (the exact integrals
are 1.676532, 1.846229 and 1.529087).  Other factors would change the published function.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

SILU_FACTOR = 1.6791767923989418
SIGMOID_FACTOR = 1.8467055342154763
SMOOTH_LEAKY_RELU_FACTOR = 1.531320475574866


def scaled_silu(x: Tensor) -> Tensor:
    """SiLU times its normalisation factor."""
    return F.silu(x) * SILU_FACTOR


def scaled_sigmoid(x: Tensor) -> Tensor:
    """Sigmoid times its normalisation factor."""
    return torch.sigmoid(x) * SIGMOID_FACTOR


def smooth_leaky_relu(x: Tensor, scale: float = SMOOTH_LEAKY_RELU_FACTOR) -> Tensor:
    """Equiformer's smooth leaky ReLU, 0.6 x + 0.4 x tanh(x / 2), times a factor (EquiformerV2: 1)."""
    return x * (0.6 * scale + 0.4 * scale * torch.tanh(x / 2))


def gate(x: Sequence[Tensor], num_scalars: int) -> list[Tensor]:
    """Equivariant gate: SiLU on the first scalars; sigmoids of the others multiply the features of l > 0.

    x[l] [N, 2l+1, C_l]; x[0] holds num_scalars scalars, then one gate for each channel of l > 0 (gates of degrees
    absent from x are ignored).
    """
    widths = [part.shape[-1] for part in x[1:]]
    absent = x[0].shape[-1] - num_scalars - sum(widths)
    scalars, *gates = x[0].split([num_scalars, *widths, absent], -1)
    return [scaled_silu(scalars)] + [part * scaled_sigmoid(g) for part, g in zip(x[1:], gates, strict=False)]
