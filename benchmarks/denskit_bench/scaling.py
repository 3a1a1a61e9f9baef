"""What a step costs as structures, neighbourhoods, degrees or batches grow: the same job at several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from denskit_bench.contest import DEGREES
from denskit_bench.job import Job
from denskit_bench.measure import Notify, Plan, Record, run

Axis = Literal["atoms", "edges", "l_max", "batch"]
AXES: dict[Axis, tuple[str, tuple[float, ...]]] = {  # what a value is, and those that are taken where none are given
    "atoms": ("atoms of a periodic liquid of ethanol", (72, 243, 576, 1125)),
    "edges": ("cutoffs in Å, which say how many neighbours an atom has", (3, 4, 5, 6)),
    "l_max": ("highest degrees of the features", (1, 2, 3)),
    "batch": ("structures in a batch", (1, 2, 4, 8, 16)),
}
UNITS: dict[Axis, str | None] = {"atoms": "atoms", "edges": "edges", "batch": "structures", "l_max": None}


def sized(job: Job, over: Axis, value: float) -> Job:
    """The job at one size.  The published models of L = 2 and 3 are taken as they are."""
    if over == "edges":
        return replace(job, cutoff=float(value))
    if value != int(value) or value < 1:
        raise ValueError(f"{over}={value}: {AXES[over][0]} are whole numbers, at least 1")
    size = int(value)
    if over == "atoms":
        return replace(job, system=f"liquid-{size}")
    if over == "batch":
        return replace(job, batch=size)
    published = f"equiformer_l{size}"
    return replace(job, model=published) if {job.model, published} <= DEGREES.keys() else replace(job, l_max=size)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The records at all sizes."""

    over: Axis
    values: tuple[float, ...]
    records: tuple[Record, ...]

    def costs(self) -> list[float]:
        """Seconds of our median step at each size, for one unit (an atom, an edge, a structure) where there is one."""
        return [cost_of(record.to_dict(), UNITS[self.over]) for record in self.records]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; ``ratio`` is the cost at the last size over that at the first."""
        costs, unit = self.costs(), UNITS[self.over]
        per = f" per {unit.removesuffix('s')}" if unit else ""
        return {
            "over": self.over,
            "values": list(self.values),
            "job": asdict(self.records[0].job) | {"peer_python": None},
            "cost_s": costs,
            "cost_per": unit,
            "ratio": costs[-1] / costs[0],
            "ratio_of": f"cost{per} at {self.values[-1]:g} / at {self.values[0]:g}",
            "records": [record.to_dict() for record in self.records],
        }


def cost_of(record: dict[str, Any], unit: str | None) -> float:
    """Seconds of our median step in a record, for one unit."""
    return record["sides"]["ours"]["median_s"] / (record[unit] if unit else 1)


def run_all(
    job: Job, over: Axis, values: Sequence[float], plan: Plan, notify: Notify = lambda what, done, total: None
) -> Scaling:
    """Measure a job at all sizes.  Raises ValueError as :func:`denskit_bench.measure.run`."""
    jobs = [sized(job, over, value) for value in values]
    if len(jobs) < 2:
        raise ValueError(f"{len(jobs)} size is no scaling; give two or more with --values")
    records = []
    for value, one in zip(values, jobs, strict=True):
        records.append(run(one, plan, partial(_notify_at, notify, f"{over} {value:g}")))
    return Scaling(over=over, values=tuple(values), records=tuple(records))


def _notify_at(notify: Notify, size: str, what: str, done: int, total: int) -> None:
    notify(f"{size}: {what}", done, total)
