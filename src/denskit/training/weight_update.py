"""The update of the weights in one step: its gradients over micro-batches and processes, and what they change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from denskit.batch import Prepared
from denskit.models.base import ForceField
from denskit.random import fold
from denskit.runtime.memory import memory_named
from denskit.runtime.processes import Processes
from denskit.tasks import Task
from denskit.tasks.metrics import Metrics
from denskit.training.batch_loss import batch_loss
from denskit.training.checkpoint import Checkpoint
from denskit.training.loader import StepWork
from denskit.training.optimizer import (
    Gradients,
    Precision,
    WeightAverage,
    build_optimizer,
    load_optimizer_state,
    set_learning_rate,
)
from denskit.training.recorded import RecordedBackward, may_record
from denskit.training.settings import RunConfig
from denskit.training.starting_model import check_measured

_DROPOUT = 0xD20  # tells the seeds of dropout from those of the order and the corruption
_SMALLER = (
    "lower training.batch_size, divide it with training.accumulate, or set training.activation_checkpointing=true or "
    "training.edge_chunk=4096; on one process of several, use more of them"
)


class StepErrors(NamedTuple):
    """What a step found before the weights change, over all processes."""

    sums: Tensor  # [number of terms] float64, of the loss terms
    counts: Tensor  # [number of terms] float64
    metrics: Metrics  # of the predictions in training
    norm: Tensor  # [] of the gradient before clipping
    asked: list[bool]  # whether any process asked, of each question


class WeightUpdate:
    """Finds the gradients of a step and changes the weights by them, with the optimizer, clipping and average.

    ``data``: name of the training structures, for errors.
    """

    def __init__(self, config: RunConfig, force_field: ForceField, task: Task, group: Processes, data: str) -> None:
        training, device = config.training, group.device
        self.force_field, self.task, self.group, self.data = force_field, task, group, data
        self.seed, self.clip_norm = config.seed, training.clip_norm
        parameters = [parameter for parameter in force_field.parameters() if parameter.requires_grad]
        shared = training.shard and group.count > 1
        self.optimizer = build_optimizer(force_field, training, sharded=shared)
        self.gradients = Gradients(parameters, group)
        self.precision = Precision(training.amp, device, tf32=training.tf32)
        self.progress = 0.0  # share of the training that is over
        recorded = may_record(training, force_field, group)
        self.backward = (
            RecordedBackward(self.eager_backward, self.gradients, device) if recorded else self.eager_backward
        )
        decay = training.ema_decay
        shares = group if shared else None
        self.average = (
            None if decay is None else WeightAverage(parameters, decay, warmup=training.ema_warmup, shares=shares)
        )

    def find_gradients(self, work: StepWork, *, progress: float, ask: Callable[[], list[bool]]) -> StepErrors:
        """The gradients of a step, summed over processes, unscaled and clipped; its errors, and what processes ``ask``.

        Loss terms are divided by their counts in the whole step before any backward pass, so that gradients merely add.
        """
        device, self.progress = self.group.device, progress
        self._seed_dropout(work.step)
        if not self.force_field.training:  # walking through all modules takes a millisecond
            self.force_field.train()
        self.gradients.zero()
        counts, weights = self.group.add(work.counts.to(device)), work.weights.to(device)
        errors = torch.cat([torch.zeros_like(counts), Metrics(device).state])
        for part in work.parts:
            check_measured(self.force_field, part.batch, self.data)
            self.gradients.complete = part is work.parts[-1]
            with memory_named(part.batch, _SMALLER), self.precision.products():
                errors += self.backward(part, counts, weights)
        self.gradients.add()
        self.precision.unscale(self.optimizer)
        asked = torch.tensor(ask(), dtype=torch.float64, device=device)
        totals = self.group.add(torch.cat([errors, asked]))
        sums, state, asked = totals.split([len(counts), len(errors) - len(counts), len(asked)])
        norm = self.gradients.clip(self.clip_norm)
        return StepErrors(sums, counts, Metrics(state=state), norm, (asked > 0).tolist())

    def apply(self, learning_rate: float) -> None:
        """Change the weights by the gradients."""
        set_learning_rate(self.optimizer, learning_rate)
        self.optimizer.step()

    def load(self, checkpoint: Checkpoint) -> None:
        """Take over weights, optimizer, average and loss scale."""
        self.force_field.load_state_dict(checkpoint.weights)
        load_optimizer_state(self.optimizer, checkpoint.optimizer)
        if self.average is not None:
            assert checkpoint.average is not None
            self.average.load_state(checkpoint.average)
        self.precision.load_state(checkpoint.loss_scale)

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Context: the weights are their average, where one is kept."""
        return self.average.applied() if self.average is not None else contextlib.nullcontext()

    def eager_backward(self, part: Prepared, counts: Tensor, weights: Tensor) -> Tensor:
        """Add the gradients of a micro-batch; its sums of the loss terms, then the state of its metrics."""
        found = batch_loss(
            self.force_field,
            self.task,
            part.to(self.group.device),
            counts=counts,
            progress=self.progress,
            autocast=self.precision.autocast(),
            weights=weights,
        )
        self.precision.backward(found.loss)
        return torch.cat([found.sums, found.metrics.state])

    def _seed_dropout(self, step: int) -> None:
        """Make dropout a function of seed and step, so that a resumed run repeats it."""
        seed = fold(self.seed, _DROPOUT, step, self.group.rank)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes milliseconds for devices that are absent
        if self.group.device.type == "cuda":
            with torch.cuda.device(self.group.device):
                torch.cuda.manual_seed(seed)
