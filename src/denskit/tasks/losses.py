"""Forms of the loss: from differences to the sum and count of a term.

``published`` is the loss of the published MD17 training, ``published_oc20`` that of the published training on OC20 and
OC22, ``paper`` the printed equations, ``huber`` the Huber function of norms.  A coefficient belongs to one form: with
p = r = 0.25 the noise term weighs about 16 times more in the first than in the next two (see docs/dens.md).

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

    def size_of_number(self, difference: Tensor) -> Tensor:
        """Size [...] of numbers [...], such as energy errors: the absolute value; its gradient at zero is zero."""
        return difference.abs()

    def counted(self, scored: Tensor, existing: Tensor) -> Tensor:
        """The atoms or systems [M] bool that the mean is over: those scored."""
        return scored

    def over_atoms(self, difference: Tensor, *, scored: Tensor, existing: Tensor, batch: Batch) -> Sums:
        """Sum of the sizes of vectors [N, 3] over the scored atoms [N] bool; ``existing`` [N] bool."""
        value = self.size(zero_unless(scored, difference))
        return value.sum(), self.counted(scored, existing).sum().to(value.dtype)

    def over_systems(self, value: Tensor, *, scored: Tensor, existing: Tensor) -> Sums:
        """Sum of values [B], which are zero where not ``scored`` [B] bool; ``existing`` [B] bool."""
        return value.sum(), self.counted(scored, existing).sum().to(value.dtype)


class PublishedOC20Loss(PublishedLoss):
    """Unsquared Euclidean norms of forces and noise under one mean: over all free atoms of the batch.

    Each free atom has one norm: of its force error with the weight of the forces, or, if it was corrupted, of its noise
    error with the weight of the noise.  The sum is divided by the number of free atoms, and that over structures by the
    number of structures with the label.  Without corrupted atoms this is :class:`PublishedLoss`.
    """

    def counted(self, scored: Tensor, existing: Tensor) -> Tensor:
        """The existing ones, scored or not."""
        return existing


class PaperLoss(PublishedOC20Loss):
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


class HuberLoss(PublishedLoss):
    """Huber function of Euclidean norms and of energy errors; one mean over all scored atoms (systems) of the batch.

    As in ``torch.nn.functional.huber_loss``, of a size n >= 0:

        n^2 / 2                if n <= delta
        delta (n - delta / 2)  otherwise

    MACE (``WeightedHuberEnergyForcesStressLoss``) takes the function of each component of forces and stresses.  That
    depends on the axes: rotated structures with equally large errors would have different losses.  The norm does not
    change under rotations.  Small errors of forces count 3 times, of stresses 9 times as much as in MACE's mean over
    components.

    delta: in model units, as everything that tasks compare; multiply it by the scales of the model for eV, eV/Å and
    eV/Å^3.  For noise and strains it is in units of their sigma.
    """

    def __init__(self, delta: float) -> None:
        self.delta = delta

    def size(self, difference: Tensor) -> Tensor:
        """Huber function of the norms."""
        return self._of_squared(difference.square().sum(dim=-1))

    def size_of_number(self, difference: Tensor) -> Tensor:
        """Huber function of the numbers."""
        return self._of_squared(difference.square())

    def _of_squared(self, squared: Tensor) -> Tensor:
        """Huber function of sizes, from their squares [...]; twice differentiable at zero, where roots are not."""
        small = squared <= self.delta * self.delta
        size = torch.where(small, torch.ones_like(squared), squared).sqrt()
        return torch.where(small, squared / 2, self.delta * (size - self.delta / 2))


LossName = Literal["published", "published_oc20", "paper", "huber"]
LOSSES: dict[str, PublishedLoss] = {  # without settings of their own
    "published": PublishedLoss(),
    "published_oc20": PublishedOC20Loss(),
    "paper": PaperLoss(),
}


def zero_unless(mask: Tensor, value: Tensor) -> Tensor:
    """``value`` [M, ...] where ``mask`` [M] is True, else zero, even where it is NaN, with no gradient there."""
    return torch.where(mask.reshape(-1, *[1] * (value.dim() - 1)), value, torch.zeros_like(value))
