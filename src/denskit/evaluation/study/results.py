"""The results of a study: errors by variant, point and seed, as one table for people and files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denskit.evaluation.study.config import StudyConfig, points_of, runs_of
from denskit.evaluation.study.running import StudyFolder
from denskit.evaluation.study.statistics import Difference, Mean, difference, mean_of

METRICS = {  # key in the results: name and unit for people
    "energy_mae_meV": "energy (meV)",
    "forces_mae_meV_per_A": "forces (meV/Å)",
    "stress_mae_meV_per_A3": "stress (meV/Å³)",
}
FORCES = "forces_mae_meV_per_A"


@dataclass(frozen=True)
class Found:
    """One trained and judged run."""

    variant: str
    point: str  # in words; empty where the study has no axes
    values: Mapping[str, Any]  # of the axes
    seed: int
    errors: Mapping[str, Mapping[str, float]]  # test -> metric -> value
    seconds: float
    parameters: int
    folder: Path


@dataclass(frozen=True)
class Column:
    """One error in the table."""

    test: str
    metric: str

    def title(self, several: bool) -> str:
        """Name for people; ``several``: there is more than one test."""
        return f"{self.test}: {METRICS[self.metric]}" if several else METRICS[self.metric]


@dataclass(frozen=True)
class Row:
    """Mean errors of a variant at a point."""

    variant: str
    point: str
    values: Mapping[str, Any]
    means: Mapping[Column, Mean]
    differences: Mapping[Column, Difference]  # to the reference variant; empty for itself
    minutes: float
    parameters: int
    published: float | None = None  # force MAE, meV/Å


@dataclass(frozen=True)
class Results:
    """A table of means over seeds."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    found: tuple[Found, ...]
    reference: str  # the first variant

    def best(self, column: Column) -> set[tuple[str, str]]:
        """(point, variant) of the smallest mean at each point."""
        smallest: dict[str, Row] = {}
        for row in self.rows:
            if column in row.means:
                held = smallest.get(row.point)
                if held is None or row.means[column].value < held.means[column].value:
                    smallest[row.point] = row
        return {(point, row.variant) for point, row in smallest.items()}


def describe(values: Mapping[str, Any]) -> str:
    """Values of the axes in words: ``train 50, sigma 0.1``."""
    return ", ".join(f"{key.rsplit('.', 1)[-1]} {value}" for key, value in values.items())


def collect(study: StudyConfig, folder: StudyFolder) -> Results:
    """Results of all runs that are finished.  Raises ValueError where none is."""
    found = []
    for run in runs_of(study):
        path = folder.result(run)
        if path.is_file():
            result = json.loads(path.read_text(encoding="utf-8"))
            found.append(
                Found(
                    variant=run.variant, point=describe(run.point), values=run.point, seed=run.seed,
                    errors=result["errors"], seconds=result["seconds"], parameters=result["parameters"],
                    folder=folder.run(run),
                )
            )  # fmt: skip
    if not found:
        raise ValueError(f"{folder.path}: no run of this study is finished yet")
    places = [(describe(point), point) for point in points_of(study)]
    return tabulate(study.title, found, list(study.variants), places, study.published)


def tabulate(
    title: str,
    found: Sequence[Found],
    variants: Sequence[str],
    points: Sequence[tuple[str, Mapping[str, Any]]],
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> Results:
    """Means over seeds of each variant at each point; the first variant is the reference of differences."""
    columns = tuple(_columns(found))
    rows = []
    for point, values in points:
        reference = [run for run in found if run.point == point and run.variant == variants[0]]
        for variant in variants:
            runs = [run for run in found if run.point == point and run.variant == variant]
            if runs:
                said = (published or {}).get(variant, {})
                rows.append(_row(runs, reference, columns, values, said.get(point, said.get(_last(values)))))
    return Results(title, columns, tuple(rows), tuple(found), variants[0])


def _last(values: Mapping[str, Any]) -> str:
    """The value of the last axis as text: the key of published numbers."""
    return str(list(values.values())[-1]) if values else ""


def _row(
    runs: Sequence[Found],
    reference: Sequence[Found],
    columns: Iterable[Column],
    values: Mapping[str, Any],
    published: float | None,
) -> Row:
    means, differences = {}, {}
    for column in columns:
        own, other = _by_seed(runs, column), _by_seed(reference, column)
        if own:
            means[column] = mean_of(list(own.values()))
            gap = difference(own, other) if runs[0].variant != (reference[0].variant if reference else "") else None
            if gap is not None:
                differences[column] = gap
    minutes = sum(run.seconds for run in runs) / len(runs) / 60
    return Row(runs[0].variant, runs[0].point, values, means, differences, minutes, runs[0].parameters, published)


def _by_seed(runs: Iterable[Found], column: Column) -> dict[int, float]:
    found = {run.seed: run.errors.get(column.test, {}).get(column.metric, math.nan) for run in runs}
    return {seed: value for seed, value in found.items() if not math.isnan(value)}


def _columns(found: Sequence[Found]) -> Iterator[Column]:
    tests = list(dict.fromkeys(test for run in found for test in run.errors))
    for test in tests:
        for metric in METRICS:
            if any(metric in run.errors.get(test, {}) for run in found):
                yield Column(test, metric)


def as_csv(results: Results) -> str:
    """Every number of every run, one line for each error."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    axes = list(dict.fromkeys(key for run in results.found for key in run.values))
    writer.writerow(["variant", *axes, "seed", "test", "metric", "value", "seconds", "parameters", "folder"])
    for run in results.found:
        for test, errors in run.errors.items():
            for metric, value in errors.items():
                where = [run.variant, *(run.values.get(key, "") for key in axes), run.seed, test, metric]
                writer.writerow([*where, f"{value:.7g}", f"{run.seconds:.1f}", run.parameters, run.folder])
    return stream.getvalue()
