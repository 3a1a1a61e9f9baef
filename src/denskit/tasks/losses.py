"""Forms of the loss: from differences to the sum and count of a term.

``published`` is the loss of the published MD17 training, ``published_oc20`` that of the published training on OC20 and
OC22, ``paper`` the printed equations.  A coefficient belongs to one form: with p = r = 0.25 the noise term weighs about
16 times more in the first than in the others (see docs/dens.md).

An atom or system *exists* for a term when it has the label and may move; it is *scored* when the term counts its error.
Scored atoms and systems are a subset of the existing ones.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from denskit.batch import Batch

Sums = tuple[Tensor, Tensor]  # (sum [], count []), both of the prediction's dtype


class PublishedLoss:
    """Unsquared Euclidean norms; one mean over all scored atoms (systems) of the batch."""

    def size(self, difference: Tensor) -> Tensor:
        """Size [...] of vectors [..., d]; its gradient at zero is zero."""
        return torch.linalg.vector_norm(difference, dim=-1)

    def over_atoms(self, difference: Tensor, *, scored: Tensor, existing: Tensor, batch: Batch) -> Sums:
        """Sum of the sizes of vectors [N, 3] over the scored atoms [N] bool; ``existing`` [N] bool."""
        value = self.size(zero_unless(scored, difference))
        return value.sum(), scored.sum().to(value.dtype)

    def over_systems(self, value: Tensor, *, scored: Tensor, existing: Tensor) -> Sums:
        """Sum of values [B], which are zero where not ``scored`` [B] bool; ``existing`` [B] bool."""
        return value.sum(), scored.sum().to(value.dtype)


class PublishedOC20Loss(PublishedLoss):
    """Unsquared Euclidean norms of forces and noise under one mean: over all free atoms of the batch.

    Each free atom has one norm: of its force error with the weight of the forces, or, if it was corrupted, of its noise
    error with the weight of the noise.  The sum is divided by the number of free atoms, and that over structures by the
    number of structures with the label.  Without corrupted atoms this is :class:`PublishedLoss`.
    """

    def over_atoms(self, difference: Tensor, *, scored: Tensor, existing: Tensor, batch: Batch) -> Sums:
        """Count the existing atoms, scored or not."""
        value = self.size(zero_unless(scored, difference))
        return value.sum(), existing.sum().to(value.dtype)

    def over_systems(self, value: Tensor, *, scored: Tensor, existing: Tensor) -> Sums:
        """Count the existing systems, scored or not."""
        return value.sum(), existing.sum().to(value.dtype)


class PaperLoss(PublishedLoss):
    """Squared norms; in each structure the sum over scored atoms divided by |S|, then the mean over the structures.

    (The paper's algorithm 2, "Training with DeNS".)  |S| counts the existing atoms, scored or not: the free atoms with
    a label.  A structure without any is not counted.
    """

    def size(self, difference: Tensor) -> Tensor:
        """Squared."""
        return difference.square().sum(dim=-1)

    def over_atoms(self, difference: Tensor, *, scored: Tensor, existing: Tensor, batch: Batch) -> Sums:
        """Count the structures with existing atoms."""
        value = self.size(zero_unless(scored, difference))
        atoms = batch.count_atoms(existing)  # [B], |S|
        summed = batch.sum_over_atoms(value)  # [B]
        return (summed / atoms.clamp(min=1)).sum(), (atoms > 0).sum().to(value.dtype)

    def over_systems(self, value: Tensor, *, scored: Tensor, existing: Tensor) -> Sums:
        """Count the existing systems."""
        return value.sum(), existing.sum().to(value.dtype)


LossName = Literal["published", "published_oc20", "paper"]
LOSSES: dict[LossName, PublishedLoss] = {
    "published": PublishedLoss(),
    "published_oc20": PublishedOC20Loss(),
    "paper": PaperLoss(),
}


def zero_unless(mask: Tensor, value: Tensor) -> Tensor:
    """``value`` [M, ...] where ``mask`` [M] is True, else zero, even where it is NaN, with no gradient there."""
    return torch.where(mask.reshape(-1, *[1] * (value.dim() - 1)), value, torch.zeros_like(value))
