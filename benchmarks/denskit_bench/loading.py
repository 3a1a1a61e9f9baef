"""The loader: a batch from a file, read, corrupted and with edges, as a training with DeNS wants it.

Beside it a plain one: ASE reads the frames of the file in order, and its neighbour list finds their edges.  What the
plain one leaves out (random order, checks, DeNS, tensors) is to its advantage.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import ase
import ase.io
import numpy as np
import torch
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.batch import Batch
from denskit.data import DataConfig, read_file
from denskit.data.base import collate
from denskit.data.convert import convert
from denskit.models.config import ModelConfig
from denskit.tasks import DeNS, DeNSConfig
from denskit.training.loader import Loader, Mixture, epoch_order, steps_per_epoch
from denskit.training.schedule import Schedule
from denskit.training.settings import TrainingConfig
from denskit_bench.contender import Meeting, Own
from denskit_bench.job import Job, Side
from denskit_bench.models import config_of
from denskit_bench.neighbors import edges_of_ase
from denskit_bench.systems import labelled

BATCHES = 8  # of made structures, where no file is given
MEASURED = 64  # batches at most, of a part of the loader
REPEATS = 3  # of a part, of which the best counts
THREADS = (1, 2, 4)  # for the throughput


def assemble(job: Job, sides: Sequence[Side]) -> Meeting:
    """The sides that are wanted, on a file of structures, converted to shards for ours."""
    config, meeting = config_of(job), Meeting()
    folder = Path(meeting.resources.enter_context(tempfile.TemporaryDirectory()))
    file = folder / "made.extxyz" if job.data is None else Path(job.data)
    if job.data is None:
        ase.io.write(file, _frames(job))
    begin = time.process_time()
    convert([file], folder / "shards", DataConfig(missing="mask"))
    converting = time.process_time() - begin
    ours = _loader(job, config, folder / "shards")
    sizes, steps = ours.source.sizes, count()
    assert sizes is not None, "shards know the sizes of their structures"
    meeting.facts = {
        "structures": job.batch,
        "atoms": job.batch * float(np.mean(sizes)),
        "structures_in_file": len(sizes),
        "cpu_ms_per_structure": {"convert": 1e3 * converting / len(sizes), **_parts(ours, config)},
        "structures_per_s_by_threads": {str(threads): _throughput(ours, threads) for threads in THREADS},
    }
    cpu = torch.device("cpu")
    if "theirs" in sides:
        meeting.contenders["theirs"] = Own(_plain_reader(file, job.batch, config), cpu, counts=False)
    meeting.contenders["ours"] = Own(lambda: ours.work(next(steps)), cpu, counts=False)
    return meeting


def _frames(job: Job) -> list[ase.Atoms]:
    frames = []
    for system in labelled(job.system, BATCHES * job.batch):
        atoms = ase.Atoms(system.atomic_numbers, system.positions, cell=system.cell, pbc=system.pbc)
        atoms.calc = SinglePointCalculator(atoms, energy=system.energy, forces=system.forces)
        frames.append(atoms)
    return frames


def _loader(job: Job, config: ModelConfig, shards: Path) -> Loader:
    source, _ = read_file(shards)
    training = TrainingConfig(batch_size=job.batch, max_steps=10**9, warmup=0)
    schedule = Schedule(training, steps_per_epoch(len(source), job.batch, True))
    return Loader(
        mixture=Mixture(source, len(source)), task=DeNS(DeNSConfig()), seed=0, batch_size=job.batch, accumulate=1,
        schedule=schedule, dtype=torch.float32, model=config,
    )  # fmt: skip


def _parts(loader: Loader, config: ModelConfig) -> dict[str, float]:
    """Milliseconds of processor time a structure, in the random order of an epoch."""
    size = len(loader.source)
    places = epoch_order(0, 0, size, np.arange(min(size, MEASURED * loader.batch_size))).tolist()

    def batches() -> list[Batch]:
        starts = range(0, len(places), loader.batch_size)
        return [collate([loader.source[i] for i in places[s : s + loader.batch_size]])[0] for s in starts]

    ready = batches()
    parts: dict[str, Callable[[], object]] = {
        "read": lambda: [loader.source[i] for i in places],
        "read and collate": batches,
        "neighbors": lambda: [config.with_neighbors(batch) for batch in ready],
        "all": lambda: [loader.work(step) for step in range(len(ready))],
    }
    return {name: 1e3 * _best(part) / len(places) for name, part in parts.items()}


def _best(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return min(times)


def _throughput(loader: Loader, threads: int) -> float:
    """Structures a second of wall time that so many threads make ready."""
    steps = min(loader.schedule.steps_per_epoch, MEASURED)
    several = replace(loader, threads=threads)
    begin = time.perf_counter()
    for _ in several.prefetch(0, steps, 2 * threads):
        pass
    return steps * loader.batch_size / (time.perf_counter() - begin)


def _plain_reader(file: Path, size: int, config: ModelConfig) -> Callable[[], object]:
    """A function that reads the next ``size`` frames, over and over, and finds their edges."""

    def frames() -> object:
        while True:
            yield from ase.io.iread(file, ":")

    stream = frames()

    def work() -> list[np.ndarray]:
        return [edges_of_ase(next(stream), config) for _ in range(size)]  # type: ignore[call-overload]

    return work
