"""Loss of one micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from denskit.batch import Prepared, Targets
from denskit.models.base import ForceField
from denskit.tasks import DeNS, LearnedTask, Task, Term, total_loss
from denskit.tasks.metrics import Metrics

ENCODES = "noise"  # the head with which a model encodes forces


@dataclass(frozen=True, kw_only=True)
class BatchLoss:
    """Loss and errors of one micro-batch."""

    loss: Tensor  # [], divided by the counts of the whole step
    sums: Tensor  # [number of terms] float64, of the loss terms
    metrics: Metrics  # of the predictions, where labels are scored; forces never on corrupted atoms


def batch_loss(
    force_field: ForceField,
    task: Task,
    part: Prepared,
    *,
    counts: Tensor,
    progress: float,
    autocast: AbstractContextManager,
    weights: Tensor | None = None,
) -> BatchLoss:
    """Predict and score a micro-batch.

    part: with edges, targets in eV and Å.
    counts: [number of terms] of the whole step, over all micro-batches and processes.
    weights: [number of terms] of the terms, in place of their own (a recorded step keeps numbers, but reads tensors).
    """
    scaling = force_field.scaling
    if isinstance(task, LearnedTask) and force_field.companion is not None:
        part = task.corrupt(force_field.companion, part, progress)
        part = replace(part, batch=force_field.config.with_neighbors(part.batch))
    scaled = replace(part, targets=scaling.scale_targets(part.batch, part.targets))
    with autocast:
        prediction = force_field(part.batch, part.force_input if ENCODES in task.heads else None)
    terms = task.losses(prediction, scaled, progress)
    physical = scaling.unscale(part.batch, {name: prediction[name].detach() for name in ("energy", "forces")})
    metrics = Metrics(part.batch.positions.device)
    metrics.update(physical, part.batch, _judged(task, part), scaling.reference_energy(part.batch))
    sums = torch.stack([term.sum.detach().double() for term in terms.values()])
    return BatchLoss(loss=total_loss(terms, counts, weights), sums=sums, metrics=metrics)


def _judged(task: Task, part: Prepared) -> Targets:
    """The labels that training errors are of: no forces of corrupted atoms, nothing that DeNS does not score."""
    targets = part.targets
    energy, forces = task.scored(part) if isinstance(task, DeNS) else (targets.energy_mask, ~part.noise_mask)
    return replace(targets, energy_mask=targets.energy_mask & energy, forces_mask=targets.forces_mask & forces)


def terms_without(task: Task, part: Prepared, progress: float) -> dict[str, Term]:
    """The loss terms of a prediction of zeros, for their names, weights and counts."""
    of_atoms, of_systems = torch.zeros_like(part.batch.positions), torch.zeros_like(part.batch.cell)
    by_irreps = {"0": of_atoms[:, :1], "1": of_atoms, "0+2": of_systems}
    zeros = {
        "energy": part.batch.positions.new_zeros(part.batch.num_systems),
        "forces": of_atoms,
        "stress": of_systems,
        **{name: by_irreps[irreps] for name, irreps in task.heads.items()},
    }
    return task.losses(zeros, part, progress)


def counts_of(terms: Mapping[str, Term]) -> Tensor:
    """Counts of loss terms [number of terms] float64; they follow from masks, without a prediction."""
    return torch.stack([term.count.double() for term in terms.values()])
