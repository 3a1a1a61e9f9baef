"""Time a contest: interleaved steps after warm-ups, peak memory in processes of their own, ceilings in the same run."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import torch

from denskit.bench.contest import (
    Agreement,
    Contest,
    Contestant,
    Side,
    build_contestants,
    compare,
    prepare_batch,
)
from denskit.bench.machine import Machine, describe_machine, peak_memory_mb, present_memory_mb

WARM_UPS = 3
SIDES: tuple[Side, ...] = ("theirs", "ours")
QUARTERS = 4


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak memory of a process that builds both models and lets one of them do three steps, in MB (10^6 bytes)."""

    process_mb: float  # resident at the peak: Python, libraries and all
    steps_mb: float  # the growth above what was resident before the first step


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One model's figures; times in seconds, one per step."""

    wall: list[float]
    cpu: list[float]
    matmul_gflop: float  # of one step, counted
    parameters: int
    memory: Memory | None

    def summary(self, machine: Machine) -> dict[str, float]:
        """Medians, minima, and the share of the measured matmul ceiling that the counted products reach."""
        wall, cpu = statistics.median(self.wall), statistics.median(self.cpu)
        step = cpu if machine.threads == 1 else wall  # the clock of the ceiling
        return {
            "wall_median_s": wall,
            "wall_min_s": min(self.wall),
            "cpu_median_s": cpu,
            "cpu_min_s": min(self.cpu),
            "share_of_matmul_ceiling": self.matmul_gflop / step / machine.matmul_gflops,
        }


@dataclass(frozen=True, kw_only=True)
class Result:
    """All that a contest found."""

    contest: Contest
    machine: Machine
    atoms: int
    edges: int
    agreement: Agreement
    ours: Measured
    theirs: Measured

    def ratios(self) -> dict[str, float]:
        """How many times faster (of medians; of minima; quartiles over pairs of steps) and smaller ours is."""
        pairs = [b / a for a, b in zip(self.ours.cpu, self.theirs.cpu, strict=True)]
        out = {
            "cpu_median": statistics.median(self.theirs.cpu) / statistics.median(self.ours.cpu),
            "cpu_min": min(self.theirs.cpu) / min(self.ours.cpu),
            "wall_median": statistics.median(self.theirs.wall) / statistics.median(self.ours.wall),
            "wall_min": min(self.theirs.wall) / min(self.ours.wall),
        }
        if len(pairs) > 1:
            low, _, high = statistics.quantiles(pairs, n=QUARTERS)
            out |= {"cpu_lower_quartile": low, "cpu_upper_quartile": high}
        if self.ours.memory and self.theirs.memory:
            out["memory_process"] = self.ours.memory.process_mb / self.theirs.memory.process_mb
            out["memory_steps"] = self.ours.memory.steps_mb / self.theirs.memory.steps_mb
        return out

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: everything measured, with summaries and ratios."""
        data = asdict(self)
        for side in SIDES:
            data[side]["summary"] = getattr(self, side).summary(self.machine)
        return data | {"ratios": self.ratios()}


def run(contest: Contest, *, threads: int, repeats: int, memory: bool) -> Result:
    """Measure a contest on the CPU in float32 with ``threads`` threads of torch.

    Raises:
        ValueError: Fewer than one thread or step, or the two models disagree.
    """
    if threads < 1 or repeats < 1 or contest.batch < 1:
        raise ValueError(f"threads={threads}, repeats={repeats}, batch={contest.batch}: each must be at least 1")
    torch.set_num_threads(threads)
    memories = {side: _memory_of(contest, side, threads) if memory else None for side in SIDES}
    machine = describe_machine()
    prepared = prepare_batch(contest, torch.float32, contest.batch)
    contestants = build_contestants(contest, torch.float32)
    agreement = compare(contest, contestants, prepared)
    products = {side: contestants[side].matmul_gflop(prepared) for side in SIDES}
    times: dict[Side, list[tuple[float, float]]] = {side: [] for side in SIDES}
    for turn in range(WARM_UPS + repeats):
        for side in SIDES:
            wall, cpu = time.perf_counter(), time.process_time()
            contestants[side].step(prepared)
            if turn >= WARM_UPS:
                times[side].append((time.perf_counter() - wall, time.process_time() - cpu))

    def measured(side: Side) -> Measured:
        return Measured(
            wall=[wall for wall, _ in times[side]],
            cpu=[cpu for _, cpu in times[side]],
            matmul_gflop=products[side],
            parameters=contestants[side].parameters,
            memory=memories[side],
        )

    batch = prepared.batch
    assert batch.edge_index is not None
    return Result(
        contest=contest,
        machine=machine,
        atoms=batch.num_atoms,
        edges=batch.edge_index.shape[1],
        agreement=agreement,
        ours=measured("ours"),
        theirs=measured("theirs"),
    )


def _memory_of(contest: Contest, side: Side, threads: int) -> Memory:
    """In a fresh process: the allocator of one that has done other work keeps memory and would hide the peak."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(_measure_memory, contest, side, threads).result()


def _measure_memory(contest: Contest, side: Side, threads: int) -> Memory:
    torch.set_num_threads(threads)
    prepared = prepare_batch(contest, torch.float32, contest.batch)
    contestant: Contestant = build_contestants(contest, torch.float32)[side]
    before = present_memory_mb()
    for _ in range(WARM_UPS):
        contestant.step(prepared)
    peak = peak_memory_mb()
    return Memory(process_mb=peak, steps_mb=peak - before)
