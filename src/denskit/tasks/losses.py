"""The ways to turn differences into loss terms.

``published`` is what the published MD17 training computes, ``published_oc20`` the published training on OC20 and OC22,
``paper`` is the equations as printed.  A coefficient belongs to one of them: with p = r = 0.25 the noise term weighs
about 16 times more in the first than in the others (see docs/dens.md).
Both are told of every atom and system whether it is *scored* now, and whether it *exists* for this term, that is,
whether it has the label and may move.  Scored ones are a subset of the existing ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from denskit.batch import Batch
from denskit.tasks.selection import count_atoms

Sums = tuple[Tensor, Tensor]  # (sum [], count []), both of the prediction's dtype


class LossForm(ABC):
    """How differences become a (sum, count)."""

    @abstractmethod
    def size(self, difference: Tensor) -> Tensor:
        """Size [...] of vectors [..., d]; its gradient at zero is zero."""

    @abstractmethod
    def over_atoms(self, difference: Tensor, *, scored: Tensor, existing: Tensor, batch: Batch) -> Sums:
        """Sum the sizes of vectors [N, 3] over the scored atoms [N]; ``existing`` [N] bool."""

    @abstractmethod
    def over_systems(self, value: Tensor, *, scored: Tensor, existing: Tensor) -> Sums:
        """Sum values [B], zero where not ``scored`` [B] bool; ``existing`` [B] bool."""


class PublishedLoss(LossForm):
    """Unsquared Euclidean norms; one mean over all scored atoms (systems) of the batch."""

    def size(self, difference: Tensor) -> Tensor:
        """Unsquared."""
        return torch.linalg.vector_norm(difference, dim=-1)

    def over_atoms(self, difference: Tensor, *, scored: Tensor, existing: Tensor, batch: Batch) -> Sums:
        """Count the scored atoms."""
        value = self.size(zero_unless(scored, difference))
        return value.sum(), scored.sum().to(value.dtype)

    def over_systems(self, value: Tensor, *, scored: Tensor, existing: Tensor) -> Sums:
        """Count the scored systems."""
        return value.sum(), scored.sum().to(value.dtype)


class PublishedOC20Loss(PublishedLoss):
    """Unsquared Euclidean norms of forces and noise under one mean: over all free atoms of the batch.

    Published for OC20 and OC22: each free atom has one norm, of its force error with the weight of the forces, or of
    its noise error with that of the noise if it was corrupted, and their sum is divided by the number of free atoms.
    Without corrupted atoms this is :class:`PublishedLoss`.
    """

    def over_atoms(self, difference: Tensor, *, scored: Tensor, existing: Tensor, batch: Batch) -> Sums:
        """Count the existing atoms, scored or not."""
        value = self.size(zero_unless(scored, difference))
        return value.sum(), existing.sum().to(value.dtype)


class PaperLoss(LossForm):
    """Squared norms; in each structure the sum over scored atoms divided by |S|, then the mean over the structures.

    (The paper's algorithm 2, "Training with DeNS".)  |S| counts the existing atoms of the structure, scored or not: the
    free atoms that have a label.  A structure without any is not counted.
    """

    def size(self, difference: Tensor) -> Tensor:
        """Squared."""
        return difference.square().sum(dim=-1)

    def over_atoms(self, difference: Tensor, *, scored: Tensor, existing: Tensor, batch: Batch) -> Sums:
        """Count the structures with existing atoms."""
        value = self.size(zero_unless(scored, difference))
        atoms = count_atoms(existing, batch)  # [B], |S|
        summed = batch.sum_over_atoms(value)  # [B]
        return (summed / atoms.clamp(min=1)).sum(), (atoms > 0).sum().to(value.dtype)

    def over_systems(self, value: Tensor, *, scored: Tensor, existing: Tensor) -> Sums:
        """Count the existing systems."""
        return value.sum(), existing.sum().to(value.dtype)


LossName = Literal["published", "published_oc20", "paper"]
LOSSES: dict[LossName, LossForm] = {
    "published": PublishedLoss(),
    "published_oc20": PublishedOC20Loss(),
    "paper": PaperLoss(),
}


def zero_unless(mask: Tensor, value: Tensor) -> Tensor:
    """``value`` [M, ...] where ``mask`` [M] is True, else zero, even where it is NaN, with no gradient there."""
    return torch.where(mask.reshape(-1, *[1] * (value.dim() - 1)), value, torch.zeros_like(value))
