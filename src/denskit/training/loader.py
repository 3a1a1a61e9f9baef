"""The order of the data, and the batches of each step, prepared ahead by threads.

The batch of a step is a pure function of (seed, epoch, step): resuming needs no stored state, the order needs no
memory for any number of structures, and processes, micro-batches and threads do not change it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from denskit.batch import Prepared
from denskit.data.base import Source, collate
from denskit.models.config import ModelConfig
from denskit.random import fold, keys_for, permuted
from denskit.runtime.progress import counted
from denskit.tasks import Task
from denskit.training.batch_loss import counts_of, terms_without
from denskit.training.schedule import Schedule

_ORDER = 0x0D3  # tells the keys of the order from those of the corruption


def epoch_order(seed: int, epoch: int, size: int, places: np.ndarray) -> np.ndarray:
    """Training structures at the places (each in [0, size)) of the shuffled order of an epoch."""
    return permuted(fold(seed, _ORDER, epoch), size, places)


def divide(sizes: np.ndarray, shares: int) -> list[np.ndarray]:
    """Places [n_s] in ``sizes`` for each of several shares of about the same sum, ascending in each.

    Greedy: the largest remaining structure goes to the first of the lightest shares.  Shares differ by at most one
    structure in weight, and none is empty where there are enough structures.
    """
    lightest = [(0, share) for share in range(shares)]
    taken: list[list[int]] = [[] for _ in range(shares)]
    for place in np.argsort(-sizes.astype(np.int64), kind="stable").tolist():
        weight, share = lightest[0]
        taken[share].append(place)
        heapq.heapreplace(lightest, (weight + int(sizes[place]), share))
    return [np.array(sorted(places), dtype=np.int64) for places in taken]


def steps_per_epoch(size: int, batch_size: int, drop_last: bool) -> int:
    """Steps of an epoch.  Raises ValueError when the structures do not fill one batch."""
    if drop_last and size < batch_size:
        raise ValueError(
            f"{counted(size, 'training structure')}, less than one batch of training.batch_size={batch_size}; "
            "lower it, or set training.drop_last=false"
        )
    return size // batch_size if drop_last else -(-size // batch_size)


@dataclass(frozen=True)
class Mixture:
    """Training structures, new ones first, and how many of the old ones come in each epoch."""

    source: Source
    new: int
    old: int = 0  # in each epoch
    held_out: Source | None = None  # old structures that are never trained on

    @property
    def epoch_size(self) -> int:
        """Structures of an epoch."""
        return self.new + self.old

    def structures(self, epoch: int, order: np.ndarray) -> np.ndarray:
        """Positions in the source of places [n] in an epoch; the old structures take turns over the epochs."""
        turn = (epoch * self.old + order - self.new) % max(len(self.source) - self.new, 1)
        return np.where(order < self.new, order, self.new + turn)


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """Batches of one process in one step."""

    step: int
    parts: list[Prepared]  # micro-batches with edges, targets in eV; may be empty on a process of the last batch
    counts: Tensor  # [number of terms] float64, of this process's parts
    weights: Tensor  # [number of terms] float64, of the loss terms in this step


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Makes the work of each step for one of several processes."""

    mixture: Mixture
    task: Task
    schedule: Schedule
    seed: int
    batch_size: int
    accumulate: int
    dtype: torch.dtype
    model: ModelConfig  # which neighbours it sees
    rank: int = 0
    num_processes: int = 1
    threads: int = 1

    def samples(self, step: int) -> np.ndarray:
        """Positions in the source of all structures of a step, over all processes."""
        epoch = self.schedule.epoch(step)
        start = (step - epoch * self.schedule.steps_per_epoch) * self.batch_size
        size = self.mixture.epoch_size
        order = epoch_order(self.seed, epoch, size, np.arange(start, min(start + self.batch_size, size)))
        return self.mixture.structures(epoch, order)

    @property
    def source(self) -> Source:
        """All structures that are trained on."""
        return self.mixture.source

    def shares(self, step: int) -> list[np.ndarray]:
        """Positions in the source of this process's micro-batches, with about as many atoms as those of the others."""
        samples, count = self.samples(step), self.num_processes * self.accumulate
        sizes = np.ones(len(samples)) if self._sizes is None else self._sizes[samples]
        places = divide(sizes, count)[self.rank :: self.num_processes]  # of few structures each process gets some
        return [samples[own] for own in places]

    @cached_property
    def _sizes(self) -> np.ndarray | None:
        return self.source.sizes

    def work(self, step: int) -> StepWork:
        """This process's share of a step."""
        shares = [share for share in self.shares(step) if len(share)]
        counts, weights = torch.zeros(2, len(self.term_names), dtype=torch.float64)
        parts = [self._prepare(share, step) for share in shares]
        for part in parts:
            terms = terms_without(self.task, part, self.schedule.progress(step))
            counts = counts + counts_of(terms)
            weights = torch.tensor([term.weight for term in terms.values()], dtype=torch.float64)
        return StepWork(step=step, parts=parts, counts=counts, weights=weights)

    @property
    def edges(self) -> int:
        """Edges of this process's largest micro-batch in the first step."""
        return max((part.batch.num_edges for part in self.work(0).parts), default=0)

    @cached_property
    def term_names(self) -> tuple[str, ...]:
        """Names of the loss terms, the same for every batch."""
        return tuple(self.term_weights(0.0))

    def term_weights(self, progress: float) -> dict[str, float]:
        """Weights of the loss terms at a moment of the training."""
        batch, targets = collate([self.source[0]], self.dtype)
        prepared = self.task.prepare(batch, targets, torch.zeros(1, dtype=torch.int64), progress)
        return {name: float(term.weight) for name, term in terms_without(self.task, prepared, progress).items()}

    def describe(self, step: int) -> str:
        """The structures of a step, for an error message."""
        frames = [self.source[int(i)].index for i in self.samples(step)]
        return f"{self.source.name}, frames {', '.join(map(str, frames))}"

    def prefetch(self, first: int, last: int, ahead: int) -> Iterator[StepWork]:
        """The work of steps ``first`` to ``last - 1`` in order, made by threads up to ``ahead`` steps early.

        With more threads than that, each makes one step early.
        An error while making a batch is raised where the batch would have come.
        """
        steps = iter(range(first, last))
        threads = ThreadPoolExecutor(self.threads, thread_name_prefix="denskit-loader")
        coming: deque[Future[StepWork]] = deque()
        try:
            coming.extend(threads.submit(self.work, step) for step in islice(steps, max(ahead, self.threads)))
            while coming:
                work = coming.popleft().result()
                coming.extend(threads.submit(self.work, step) for step in islice(steps, 1))
                yield work
        finally:
            threads.shutdown(cancel_futures=True)

    def _prepare(self, share: np.ndarray, step: int) -> Prepared:
        batch, targets = collate([self.source[int(index)] for index in share], self.dtype)
        keys = keys_for(self.seed, self.schedule.epoch(step), torch.from_numpy(share))
        prepared = self.task.prepare(batch, targets, keys, self.schedule.progress(step))
        try:
            edges = self.model.with_neighbors(prepared.batch)
        except ValueError as error:
            frames = ", ".join(str(self.source[int(index)].index) for index in share)
            raise ValueError(f"{self.source.name}, a batch of frames {frames}: {error}") from None
        return replace(prepared, batch=edges)
