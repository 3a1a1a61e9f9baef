"""What a task is: it prepares a batch before the model sees it, and scores what the model says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from denskit.batch import Batch, Prepared, Targets

"""Of the host, or [] on the device of a step that is recorded once and repeated."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """One term of the loss, not yet averaged, so that micro-batches and processes add up exactly.

    ``sum`` and ``count`` are added over all of them, each by itself; the loss is the sum over terms of
    ``weight * sum / max(count, 1)``.  ``count`` comes from masks alone and carries no gradient.  A term with nothing
    selected has sum 0 and stays connected to the prediction, so that its gradients are zero and not absent.
    """

    sum: Tensor  # []
    count: Tensor  # [], same dtype as sum
    weight: float

    @property
    def mean(self) -> Tensor:
        """``sum / count`` [], 0 where nothing was counted."""
        return self.sum / self.count.clamp(min=1)


def total_loss(terms: Mapping[str, Term]) -> Tensor:
    """The loss [] of one batch on one process."""
    return torch.stack([term.weight * term.mean for term in terms.values()]).sum()


class Task(Protocol):
    """What to train for.  Stateless: both methods are pure functions of their arguments."""

    @property
    def heads(self) -> dict[str, str]:
        """Heads asked of the model beyond energy, forces and stress, with their irreps: ``{"noise": "1"}``."""
        ...

    def prepare(self, batch: Batch, targets: Targets, keys: Tensor, progress: float) -> Prepared:
        """Make the batch that the model sees, before neighbours are built.

        ``targets`` are in eV and Å; ``keys`` [B] int64 are :func:`denskit.random.keys_for`; ``progress`` is the share
        of the training that is over, in [0, 1].  Arguments are left unchanged.
        """
        ...

    def losses(self, prediction: Mapping[str, Tensor], prepared: Prepared, progress: float) -> dict[str, Term]:
        """Score a prediction.  ``prediction`` and ``prepared.targets`` are in the model's units (scaled)."""
        ...
