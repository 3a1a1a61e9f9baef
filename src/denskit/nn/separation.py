"""Energies of atoms that go smoothly to those of isolated atoms as their neighbours leave."""

from __future__ import annotations

import torch
from torch import Tensor

from denskit.nn.cutoff import PolynomialEnvelope

STEEPNESS = 4.0  # one neighbour at a bond's length binds an atom by 0.98, one at half the cutoff by 0.9


def bound_share(length: Tensor, target: Tensor, num_atoms: int, cutoff: float, mask: Tensor | None = None) -> Tensor:
    """1 - exp(-STEEPNESS c) [N], where c is the sum of the envelope over the neighbours of an atom.

    0 without neighbours, nearly 1 for an atom with one at the length of a bond, and three times continuously
    differentiable in the positions, like the envelope.  ``length`` [E] in Å and ``target`` [E], the atom that has the
    neighbour, are those of the edges; ``mask`` [E] is False on padding.
    """
    weight: Tensor = PolynomialEnvelope(cutoff)(length)
    if mask is not None:
        weight = weight * mask.to(weight.dtype)
    neighbours = weight.new_zeros(num_atoms).index_add(0, target, weight)
    return -torch.expm1(-STEEPNESS * neighbours)


def separated(energies: Tensor, share: Tensor, alone: Tensor) -> Tensor:
    """Energies [N] of atoms, of which the share [N] is bound: share * energies + (1 - share) * alone.

    ``alone`` [N]: energies of isolated atoms, NaN where they are not known; these energies stay as they are.
    """
    known = ~torch.isnan(alone)
    mixed = share * energies + (1.0 - share) * torch.nan_to_num(alone)
    return torch.where(known, mixed, energies)
