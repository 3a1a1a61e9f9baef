"""Force encoding: forces of corrupted atoms as equivariant features (the paper's equation 5 and algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from denskit.geometry.harmonics import spherical_harmonics
from denskit.nn.so3_linear import Initialisation, SO3Linear


class ForceEncoding(nn.Module):
    """x_f = SO3_Linear(s |f| / sqrt(3) Y(f / |f|)), without a bias.

    With component-normalised harmonics the part of degree 1 is s f itself.  Where f = 0, as on all uncorrupted atoms,
    the embedding is exactly zero with finite gradients.  The published embedding has a bias on its scalars that acts on
    all atoms, also at inference; here the encoding has no effect at inference.

    Args:
        channels: channels of each degree of the node features.
        scale: s, in Å/eV.
        bias: a bias on the scalars of atoms with a force (EquiformerV3).
    """

    def __init__(
        self, channels: Sequence[int], scale: float, init: Initialisation = "normal", *, bias: bool = False
    ) -> None:
        super().__init__()
        self.scale = scale
        self.l_max = len(channels) - 1
        self.linear = SO3Linear([1] * len(channels), channels, bias=bias, init=init)

    def forward(self, forces: Tensor) -> list[Tensor]:
        """Forces [N, 3] in eV/Å to features x[l] [N, 2l+1, C_l]."""
        zero = (forces == 0).all(-1, keepdim=True)
        # zero forces get a direction, to avoid division by zero; their length is set to 0 afterwards
        safe = torch.where(zero, forces.new_tensor([0.0, 1.0, 0.0]), forces)
        length = safe.square().sum(-1, keepdim=True).sqrt()
        magnitude = torch.where(zero, torch.zeros_like(length), length) * (self.scale / 3**0.5)
        harmonics = spherical_harmonics(safe / length, self.l_max)
        encoded = self.linear([(magnitude * y)[:, :, None] for y in harmonics])
        if self.linear.bias is None:
            return encoded
        return [torch.where(zero[..., None], 0, part) for part in encoded]
