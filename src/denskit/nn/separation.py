"""Energies of atoms that go smoothly to those of isolated atoms as their neighbours leave."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from denskit.nn.covalent_origins import RADII

REACH = 4.0  # lengths of a bond from which on a neighbour binds nothing, where the cutoff is no shorter
STEEPNESS = 5.3  # one neighbour at the length of a bond binds an atom by 0.995
NEAREST = 0.9  # of the reach, to which longer bonds are shortened where the cutoff is


class Separation(nn.Module):
    """The share of each atom's energy that its neighbours give.

    s_i = 1 - exp(-STEEPNESS sum_j u(r_ij / R_ij) / u(b_ij / R_ij)) with u(x) = (1 - x)^3 (1 + 3 x + 6 x^2): 1 at 0;
    value, slope and curvature 0 at 1 and beyond.  b_ij, the sum of the covalent radii of both atoms, is the length of a
    bond; R_ij is ``REACH`` times that, at most the cutoff.
    """

    radii: Tensor  # [119] Å

    def __init__(self, cutoff: float) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.register_buffer("radii", torch.tensor((0, *RADII)) / 100, persistent=False)

    def forward(self, length: Tensor, edge_index: Tensor, atomic_numbers: Tensor, mask: Tensor | None = None) -> Tensor:
        """Shares [N], 0 without neighbours.

        ``length`` [E] (Å) and ``edge_index`` [2, E], the neighbour and its atom, are those of the edges; ``mask`` [E]
        is False on padding; ``atomic_numbers`` [N].
        """
        radii = self.radii.to(length.dtype)[atomic_numbers]
        bond = radii.index_select(0, edge_index[0]) + radii.index_select(0, edge_index[1])
        reach = (REACH * bond).clamp(max=self.cutoff)
        bound = _falling(length / reach) / _falling((bond / reach).clamp(max=NEAREST))
        if mask is not None:
            bound = bound * mask.to(bound.dtype)
        return -torch.expm1(-STEEPNESS * torch.zeros_like(radii).index_add(0, edge_index[1], bound))


def _falling(x: Tensor) -> Tensor:
    """1 at 0; value, slope and curvature 0 at 1 and beyond."""
    x = x.clamp(max=1.0)
    return (1.0 - x) ** 3 * (1.0 + x * (3.0 + 6.0 * x))


def separated(energies: Tensor, share: Tensor, alone: Tensor) -> Tensor:
    """Energies [N] of atoms, of which the share [N] is bound: share * energies + (1 - share) * alone.

    ``alone`` [N]: energies of isolated atoms, NaN where they are not known; these energies stay as they are.
    """
    mixed = share * energies + (1.0 - share) * torch.nan_to_num(alone)
    return torch.where(torch.isnan(alone), energies, mixed)
