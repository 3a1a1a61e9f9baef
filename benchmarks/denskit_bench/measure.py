"""Measure a job: steps in turn after warm-ups, peak memory in processes of their own, ceilings in the same run."""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import torch

from denskit.models.base import ForceField
from denskit.training.run_folder import environment
from denskit_bench import contest, dynamics, fairchem, loading, neighbors
from denskit_bench.contender import Counted, Meeting, Own
from denskit_bench.job import Job, Side
from denskit_bench.machine import Machine, clock_name, describe_machine
from denskit_bench.peers.gauges import forget_peak, peak_memory_mb, present_memory_mb
from denskit_bench.peers.process import PeerProcess
from denskit_bench.published import DENS_PERCENT, Fairness, fairness

QUARTERS = 4
MEMORY_STEPS = 3
WITH_MODELS = ("train", "energy_forces", "md", "dens")

Notify = Callable[[str, int, int], None]  # what is being done, turns done, turns in all


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a job is measured."""

    threads: int = 1
    repeats: int = 20
    warm_ups: int = 3
    memory: bool = True

    def __post_init__(self) -> None:
        if self.threads < 1 or self.repeats < 1 or self.warm_ups < 1:
            raise ValueError(
                f"threads={self.threads}, repeats={self.repeats}, warm_ups={self.warm_ups}: each must be at least 1"
            )


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak memory of a process that has one model and lets it do some steps, in MB (10^6 bytes)."""

    process_mb: float  # resident at the peak: Python, libraries and all (on a GPU: allocated)
    steps_mb: float  # the growth above what was held before the first step


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One side's figures; seconds of each step, by clock."""

    name: str
    times: dict[str, list[float]]
    first_step_s: float  # wall, with all that is compiled or cached then
    counted: Counted | None
    parameters: int | None
    kernels: str | None  # of a model of ours
    memory: Memory | None

    def shares(self, machine: Machine, clock: str) -> dict[str, float]:
        """Share of the ceilings that the counted products and traffic reach in the median step."""
        if self.counted is None:
            return {}
        seconds = statistics.median(self.times[clock])
        return {
            "matmul": self.counted.matmul_gflop / seconds / machine.matmul_gflops,
            "copy": self.counted.traffic_gb / seconds / machine.copy_gb_per_s,
        }


@dataclass(frozen=True, kw_only=True)
class Record:
    """All that was found."""

    job: Job
    plan: Plan
    machine: Machine
    facts: dict[str, Any]
    agreement: dict[str, float] | None
    sides: dict[Side, Measured]

    @property
    def clock(self) -> str:
        """The robust clock: "device" on a GPU, "cpu" with one thread of one process, else "wall"."""
        return clock_name(torch.device(self.job.device), self.plan.threads * self.job.processes)

    @property
    def ratio(self) -> float | None:
        """How many times faster ours is, by medians of the robust clock; for ``dens`` the time with over without."""
        return self.ratios().get(f"{self.clock}_median")

    def ratios(self) -> dict[str, float]:
        """Of medians and minima (theirs over ours; ``dens``: with over without), quartiles over pairs of steps.

        Of memory: ours over theirs.
        """
        if len(self.sides) < 2:
            return {}
        ours, theirs = self.sides["ours"], self.sides["theirs"]
        over, under = (ours, theirs) if self.job.work == "dens" else (theirs, ours)
        out = {}
        for clock in over.times:
            out[f"{clock}_median"] = statistics.median(over.times[clock]) / statistics.median(under.times[clock])
            out[f"{clock}_min"] = min(over.times[clock]) / min(under.times[clock])
        pairs = [b / a for a, b in zip(under.times[self.clock], over.times[self.clock], strict=True)]
        if len(pairs) > 1:
            out["lower_quartile"], _, out["upper_quartile"] = statistics.quantiles(pairs, n=QUARTERS)
        if ours.memory and theirs.memory:
            out["memory_process"] = ours.memory.process_mb / theirs.memory.process_mb
            if theirs.memory.steps_mb > 0:
                out["memory_steps"] = ours.memory.steps_mb / theirs.memory.steps_mb
        return out

    @property
    def fairness(self) -> Fairness | None:
        """Whether an e3nn opponent is as fast as the published code; None where there is nothing to compare with."""
        if "theirs" not in self.sides:
            return None
        seconds = statistics.median(self.sides["theirs"].times[self.clock])
        return fairness(self.job, seconds, self.machine.matmul_gflops)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: everything measured, with summaries and ratios."""
        judged = self.fairness
        paper = DENS_PERCENT.get(self.job.model) if self.job.work == "dens" else None
        where = environment()
        return {
            "job": asdict(self.job) | {"peer_python": None},
            "plan": asdict(self.plan),
            "commit": where["commit"] or where["packages"]["denskit"],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": asdict(self.machine),
            "threads": self.plan.threads,
            "load": self.machine.load,
            **self.facts,
            "agreement": self.agreement,
            "clock": self.clock,
            "ratio": self.ratio,
            "ratio_of": _meaning(self),
            "ratios": self.ratios(),
            "valid": judged.valid if judged else None,
            "fairness": asdict(judged) if judged else None,
            "paper_percent": paper,
            "sides": {side: self._side(measured) for side, measured in self.sides.items()},
        }

    def _side(self, measured: Measured) -> dict[str, Any]:
        times = measured.times[self.clock]
        return asdict(measured) | {
            "median_s": statistics.median(times),
            "min_s": min(times),
            "quartiles_s": statistics.quantiles(times, n=QUARTERS) if len(times) > 1 else None,
            "share_of_ceiling": measured.shares(self.machine, self.clock),
        }


def _meaning(record: Record) -> str | None:
    if len(record.sides) < 2:
        return None
    over, under = record.sides["theirs"].name, record.sides["ours"].name
    if record.job.work == "dens":
        over, under = under, over
    return f"time of {over} / time of {under}"


def run(job: Job, plan: Plan, notify: Notify = lambda what, done, total: None) -> Record:
    """Measure a job with ``plan.threads`` threads of torch.

    Raises:
        ValueError: Names or numbers that make no sense, or two sides that disagree.
    """
    torch.set_num_threads(plan.threads)
    device = torch.device(job.device)
    notify("building and comparing", 0, 0)
    with assemble(job, job.sides) as meeting:
        machine = describe_machine(device)
        first, times = _take_turns(meeting, job.sides, plan, notify)
        notify("counting operations", 0, 0)
        counted = {side: one.count() if isinstance(one, Own) else None for side, one in meeting.contenders.items()}
        machine = machine.measured_again(device)
        sides: dict[Side, Measured] = {}
        for side in job.sides:
            contender = meeting.contenders[side]
            notify(f"memory of {job.names[side]}", 0, 0)
            sides[side] = Measured(
                name=job.names[side],
                times={clock: [row[clock] for row in times[side]] for clock in times[side][0]},
                first_step_s=first[side],
                counted=counted[side],
                parameters=contender.parameters,
                kernels=_kernels_of(contender),
                memory=_memory_of(job, side, plan, contender) if plan.memory else None,
            )
        agreement = meeting.agreement.differences if meeting.agreement else None
        return Record(job=job, plan=plan, machine=machine, facts=meeting.facts, agreement=agreement, sides=sides)


def _kernels_of(contender: object) -> str | None:
    module = contender.module if isinstance(contender, Own) else None
    if not isinstance(module, ForceField):
        return None
    return module.backbone.choose_kernels(module.execution, next(module.parameters()).device)


def assemble(job: Job, sides: Sequence[Side]) -> Meeting:
    """The sides that are wanted, whatever the work."""
    if job.work in ("train", "energy_forces") and job.against == "fairchem":
        return fairchem.assemble(job, sides)
    if job.work == "md":
        return dynamics.assemble(job, sides)
    if job.work == "loader":
        return loading.assemble(job, sides)
    if job.work == "neighbors":
        return neighbors.assemble(job, sides)
    return contest.assemble(job, sides)


def _take_turns(
    meeting: Meeting, sides: Sequence[Side], plan: Plan, notify: Notify
) -> tuple[dict[Side, float], dict[Side, list[dict[str, float]]]]:
    """Wall seconds of the first step of each side, and the clocks of those after the warm-ups."""
    rows: dict[Side, list[dict[str, float]]] = {side: [] for side in sides}
    total = plan.warm_ups + plan.repeats
    for turn in range(total):
        for side in sides:
            rows[side].append(meeting.contenders[side].step())
        last = ", ".join(f"{rows[side][-1]['wall']:.3g} s" for side in sides)
        notify(f"{'warming up' if turn < plan.warm_ups else 'timing'}, last turn {last}", turn + 1, total)
    return {side: rows[side][0]["wall"] for side in sides}, {side: rows[side][plan.warm_ups :] for side in sides}


def _memory_of(job: Job, side: Side, plan: Plan, contender: object) -> Memory | None:
    """A peer's process says itself; ours is measured in a fresh one, where nothing else has left memory behind."""
    if isinstance(contender, PeerProcess):
        return Memory(**contender.memory) if contender.memory else None
    if job.work not in WITH_MODELS:
        return None
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(_measure_memory, job, side, plan.threads).result()


def _measure_memory(job: Job, side: Side, threads: int) -> Memory:
    torch.set_num_threads(threads)
    device = torch.device(job.device)
    with assemble(job, (side,)) as meeting:
        forget_peak(device)
        before = present_memory_mb(device)
        for _ in range(MEMORY_STEPS):
            meeting.contenders[side].step()
        peak = peak_memory_mb(device)
    return Memory(process_mb=peak, steps_mb=peak - before)
