"""The whole step without the host: from structures to new weights in fixed shapes, on fixed memory.

The same mathematics as the loop of :mod:`denskit.training.trainer`, which is the reference.  What differs: corruption
and the edges of small molecules happen in the step; micro-batches are padded to buckets; loss and gradients are one
flat graph, second derivatives included; schedules come as tensors; sums stay on the device until somebody reads them;
and a step that is not finite changes nothing, nor does any step after it, until it is noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from denskit.batch import Batch, Prepared
from denskit.geometry.neighbors import dense_neighbors
from denskit.memory import memory_named
from denskit.models.base import ForceField
from denskit.tasks import Task
from denskit.tasks.metrics import Metrics
from denskit.training.buckets import Bucket, Raw, StaticPart, tensors_of, with_tensors
from denskit.training.distributed import Processes
from denskit.training.ema import WeightAverage
from denskit.training.objective import counts_of, objective
from denskit.training.optimizer import Gradients, on_device
from denskit.training.precision import Precision
from denskit.training.recording import Flat, recorded, traced
from denskit.training.regions import compiled

StepMode = Literal["traced", "inductor", "cuda_graph"]


class Now(NamedTuple):
    """What moves from step to step."""

    step: int
    progress: float
    learning_rate: float
    blend: float = 0.0  # how much of the new weights goes into their average
    active: bool = True  # False: nothing is changed


class Failure(NamedTuple):
    """The first step that was not finite."""

    step: int
    norm: float
    sums: list[float]  # of the loss terms


@dataclass(frozen=True, kw_only=True)
class _Pieces:
    """Flat graphs for one bucket."""

    prepare: Flat  # tensors of the content, progress -> tensors of a Prepared with edges, counts
    differentiate: Flat  # those, counts, progress -> gradients [P], sums of the terms, state of Metrics


@dataclass(kw_only=True)
class StaticStep:
    """Makes steps; all state of the training stays where it is: in parameters, optimizer, and average."""

    mode: StepMode
    force_field: ForceField
    task: Task
    optimizer: torch.optim.Optimizer
    gradients: Gradients
    average: WeightAverage | None
    clip_norm: float | None
    precision: Precision
    group: Processes
    num_terms: int
    advice: str  # where memory runs out
    say: Callable[[str], None] = print
    _pieces: dict[Bucket, _Pieces] = field(default_factory=dict)
    _replays: dict[tuple[Bucket, ...], tuple[list[Tensor], Callable[[], None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=self.group.device)

        self.now = zeros(len(Now._fields))
        # float32 is what the fused kernel of CUDA reads
        self.rate = zeros().float() if self.group.device.type == "cuda" else zeros()
        self.terms = zeros(2, self.num_terms)
        self.errors = Metrics(self.group.device).state
        self.failure = zeros(2 + self.num_terms).fill_(-1)  # step, norm, sums
        self._pool = torch.cuda.graph_pool_handle() if self.mode == "cuda_graph" else None
        self._parameters = [parameter for parameter in self.force_field.parameters() if parameter.requires_grad]

    def run(self, parts: list[StaticPart], now: Now) -> None:
        """One step on micro-batches (on the host); nothing is waited for."""
        key = tuple(part.bucket for part in parts)
        with memory_named(_largest(parts), self.advice) if parts else nullcontext():
            if key not in self._replays:
                self._replays[key] = self._new_replay(key, parts)
            buffers, replay = self._replays[key]
            _fill(buffers, [tensor for part in parts for tensor in tensors_of(part.content)])
            self._set(now)
            replay()

    def collect(self, terms: Tensor, metrics: Metrics) -> None:
        """Add what was summed up since the last time to loss terms [2, number of terms] and metrics."""
        terms += self.terms
        metrics.state += self.errors
        self.terms.zero_()
        self.errors.zero_()

    def failed(self) -> Failure | None:
        """The first step that was not finite, if there was one.  Waits for the device."""
        step, norm, *sums = self.failure.tolist()
        return None if step < 0 else Failure(int(step), norm, sums)

    def _set(self, now: Now) -> None:
        values = torch.tensor(now, dtype=torch.float64)
        _fill([self.now], [values.pin_memory() if self.now.is_cuda else values])
        self.rate.copy_(self.now[Now._fields.index("learning_rate")])

    def _new_replay(self, key: tuple[Bucket, ...], parts: list[StaticPart]) -> tuple[list[Tensor], Callable[[], None]]:
        """Memory for the inputs, and what does a step on them; the state of the training is not touched."""
        self.force_field.train()
        device = self.group.device
        contents = [
            with_tensors(part.content, (tensor.to(device, copy=True) for tensor in tensors_of(part.content)))
            for part in parts
        ]
        self._set(Now(0, 0.0, 0.0, active=False))
        for part, content in zip(parts, contents, strict=True):
            if part.bucket not in self._pieces:
                self._pieces[part.bucket] = self._new_pieces(part.bucket, content)
        inputs = [tensors_of(content) for content in contents]
        pieces = [self._pieces[bucket] for bucket in key]

        @torch.no_grad()
        def step() -> None:
            self._step(pieces, inputs)

        buffers = [tensor for tensors in inputs for tensor in tensors]
        if self._pool is None:
            return buffers, step
        self.say(f"CUDA graph of a step of {' and '.join(map(str, key))}")
        return buffers, recorded(step, self._pool)

    def _new_pieces(self, bucket: Bucket, content: Raw | Prepared) -> _Pieces:
        """Trace what happens to a micro-batch of these shapes."""
        self.say(f"tracing the step for {bucket}")
        like: list[Prepared] = []

        def prepare(*tensors: Tensor) -> list[Tensor]:
            *given, progress = tensors
            prepared = self._prepared(with_tensors(content, iter(given)), bucket, progress)
            like[:] = [prepared]
            return [*tensors_of(prepared), counts_of(self.task, prepared, progress)]

        def differentiate(*tensors: Tensor) -> list[Tensor]:
            *given, counts, progress = tensors
            prepared = with_tensors(like[0], iter(given))
            with torch.enable_grad():
                found = objective(
                    self.force_field,
                    self.task,
                    prepared,
                    counts=counts,
                    progress=progress,
                    autocast=self.precision.autocast(),
                )
                gradients = torch.autograd.grad(found.loss, self._parameters, allow_unused=True, materialize_grads=True)
            return [torch.cat([gradient.flatten() for gradient in gradients]), found.sums, found.metrics.state]

        progress = self._progress()
        first = traced(prepare, [*tensors_of(content), progress])
        outputs = first(*tensors_of(content), progress)
        second = traced(differentiate, [*outputs, progress])
        if self.mode == "inductor":
            second = compiled(second, [*outputs, progress], self.say)
        return _Pieces(prepare=first, differentiate=second)

    def _prepared(self, content: Raw | Prepared, bucket: Bucket, progress: Tensor) -> Prepared:
        if isinstance(content, Prepared):
            return content
        prepared = self.task.prepare(content.batch, content.targets, content.keys, progress)
        batch = dense_neighbors(prepared.batch, self.force_field.cutoff, max_atoms=bucket.molecule, checked=False)
        return Prepared(**{**vars(prepared), "batch": batch})

    def _progress(self) -> Tensor:
        """[] in the precision of the model, so that what it multiplies keeps its own."""
        return self.now[Now._fields.index("progress")].to(self.gradients.flat.dtype)

    def _step(self, pieces: list[_Pieces], inputs: list[list[Tensor]]) -> None:
        """All that a step does, on the device."""
        progress = self._progress()
        counts = torch.zeros_like(self.terms[0])
        prepared = []
        for piece, tensors in zip(pieces, inputs, strict=True):
            *ready, count = piece.prepare(*tensors, progress)
            counts += count
            prepared.append(ready)
        self.group.add(counts)
        self.gradients.zero()
        sums, errors = torch.zeros_like(counts), torch.zeros_like(self.errors)
        for piece, ready in zip(pieces, prepared, strict=True):
            gradient, term_sums, state = piece.differentiate(*ready, counts, progress)
            self.gradients.flat += gradient
            sums += term_sums
            errors += state
        self.group.add(self.gradients.flat)
        self._update(self.group.add(sums), counts, self.group.add(errors))

    def _update(self, sums: Tensor, counts: Tensor, errors: Tensor) -> None:
        """Clip, change weights and their average, and add up, where everything is finite and always was."""
        step, _, _, blend, active = self.now.unbind()
        norm = self.gradients.clip(self.clip_norm)
        outcome = torch.cat([step[None], norm[None].double(), sums])
        sound = self.failure[0] < 0
        finite = outcome.isfinite().all()
        good = finite & sound & (active > 0)
        self.failure.copy_(torch.where(~finite & sound & (active > 0), outcome, self.failure))
        with on_device(self.optimizer, self.rate, skip=~good):
            self.optimizer.step()
        if self.average is not None:
            self.average.blend(blend * good)
        self.terms += torch.where(good, torch.stack([sums, counts]), 0.0)
        self.errors += torch.where(good, errors, 0.0)


def usable_mode(mode: Literal["eager"] | StepMode, group: Processes) -> tuple[Literal["eager"] | StepMode, list[str]]:
    """How steps are made on these devices, and why not as asked.

    Raises ValueError for CUDA graphs on several processes, whose sums would be inside the graph.
    """
    if mode == "cuda_graph" and group.device.type != "cuda":
        return "eager", [f"training.step=cuda_graph needs a CUDA device, and this is {group.device}: eager steps"]
    if mode == "cuda_graph" and group.count > 1:
        raise ValueError(
            f"training.step=cuda_graph is for one process, and these are {group.count}; use training.step=traced"
        )
    return mode, []


def _fill(buffers: list[Tensor], values: list[Tensor]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value, non_blocking=True)


def _largest(parts: list[StaticPart]) -> Batch:
    return max((part.content.batch for part in parts), key=lambda batch: batch.num_atoms)
