"""The contract of a task: prepare a batch before the model sees it, then score the prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from denskit.batch import Batch, Prepared, Targets
from denskit.models.config import ModelConfig


@dataclass(frozen=True)
class Term:
    """One term of the loss as a sum and a count, so that micro-batches and processes add up exactly.

    The loss is the sum over terms of ``weight * sum / max(count, 1)``, after sums and counts were added over all
    micro-batches and processes.  The count comes from masks alone and has no gradient.  A term without selected atoms
    or structures has sum 0 and stays connected to the prediction, so that its gradients are zero rather than absent.
    """

    sum: Tensor  # []
    count: Tensor  # [], same dtype as sum
    weight: float

    @property
    def mean(self) -> Tensor:
        """``sum / count`` [], 0 where the count is 0."""
        return self.sum / self.count.clamp(min=1)


def total_loss(
    terms: Mapping[str, Term], counts: Iterable[Tensor] | None = None, weights: Iterable[Tensor] | None = None
) -> Tensor:
    """Loss [], or the share of one micro-batch in it.

    counts: of each term in the whole step, over all micro-batches and processes; None: the batch is the whole step.
    weights: of each term, in place of its own.
    """
    if counts is None:
        counts = [term.count for term in terms.values()]
    by_term: Iterable[float | Tensor] = [term.weight for term in terms.values()] if weights is None else weights
    parts = [
        weight * term.sum / count.clamp(min=1).to(term.sum.dtype)
        for term, count, weight in zip(terms.values(), counts, by_term, strict=True)
    ]
    return torch.stack(parts).sum()


class Task(Protocol):
    """A training objective.  Stateless: both methods are pure functions of their arguments."""

    @property
    def heads(self) -> dict[str, str]:
        """Heads of the model beyond energy, forces and stress, by name, with their irreps.

        ``{"noise": "1"}``: also makes the model encode ``Prepared.force_input``.  Others, such as ``{"charge": "0"}``,
        are for the losses alone: outputs [N, 1] of "0", [N, 3] of "1", [B, 3, 3] of "0+2".
        """
        ...

    def prepare(self, batch: Batch, targets: Targets, keys: Tensor, progress: float) -> Prepared:
        """The batch for the model, before neighbours are built; the arguments stay unchanged.

        ``targets`` are in eV and Å; ``keys`` [B] int64 are :func:`denskit.random.keys_for`; ``progress`` is the share
        of the training that is over, in [0, 1].
        """
        ...

    def losses(self, prediction: Mapping[str, Tensor], prepared: Prepared, progress: float) -> dict[str, Term]:
        """Terms of the loss.  ``prediction`` and ``prepared.targets`` are in model units.

        ``progress`` may change the weights of the terms and nothing else: recorded steps keep other numbers.
        """
        ...


@runtime_checkable
class LearnedTask(Task, Protocol):
    """A task with a network of its own, trained with the model: checkpoints hold its weights, model files do not."""

    def network(self, model: ModelConfig) -> nn.Module:
        """The network, with fresh weights."""
        ...

    def corrupt(self, network: nn.Module, prepared: Prepared, progress: float) -> Prepared:
        """The input of the model, from a prepared batch with edges; the result has none.

        Gradients pass from the loss through positions and targets into the network.
        """
        ...
