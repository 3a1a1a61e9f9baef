"""The results of a study: errors by variant, point and seed, as one table for people and files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from denskit.evaluation.study.config import (
    ENERGY,
    FORCES,
    MEAN,
    METRICS,
    SIMULATION,
    TEST,
    Numbers,
    Published,
    by_test,
    describe,
)
from denskit.evaluation.study.statistics import Difference, Mean, decimals, difference, mean_of

ROUNDING = 1e-3  # meV, meV/Å, ...: smaller mean errors are those of float32, as of forces that symmetry makes zero
_LARGER_IS_BETTER = ("stability_ps",)
_OF_SIMULATIONS = ("stability_ps", "h_of_r_error")


@dataclass(frozen=True, kw_only=True)
class Found:
    """One trained and judged run."""

    variant: str
    values: Mapping[str, Any]  # of the axes
    seed: int
    errors: Mapping[str, Mapping[str, float]]  # test -> metric -> value
    seconds: float
    parameters: int
    folder: Path

    @property
    def point(self) -> str:
        """The values of the axes in words; empty where the study has no axes."""
        return describe(self.values)


@dataclass(frozen=True)
class Column:
    """One error in the table."""

    test: str
    metric: str

    def title(self, several: bool) -> str:
        """Name for people; ``several``: there is more than one test."""
        return f"{self.test}: {METRICS[self.metric]}" if several else METRICS[self.metric]

    @property
    def floor(self) -> float:
        """Values below it say nothing."""
        return ROUNDING if "_mae_" in self.metric else 0.0


@dataclass(frozen=True)
class Row:
    """Mean errors of a variant at a point."""

    variant: str
    values: Mapping[str, Any]  # of the axes
    means: Mapping[Column, Mean]
    differences: Mapping[Column, Difference]  # to the reference variant; empty for itself
    minutes: float
    parameters: int
    seeds: Mapping[Column, frozenset[int]] = field(default_factory=dict)  # of the means; committees have none
    published: Mapping[Column, float] = field(default_factory=dict)
    chosen: Mapping[str, Any] = field(default_factory=dict)  # of axes that are tuned: the best values

    @property
    def label(self) -> str:
        """The variant, and at which values it is the best."""
        return f"{self.variant}, best {describe(self.chosen)}" if self.chosen else self.variant

    @property
    def point(self) -> str:
        """The values of the axes in words; empty where the study has no axes."""
        return describe(self.values)


@dataclass(frozen=True)
class Results:
    """A table of means over seeds."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    found: tuple[Found, ...]
    reference: str  # the first variant
    warning: str = ""  # of variants that were judged on different structures
    remarks: tuple[str, ...] = ()  # below the table
    tuned: tuple[Row, ...] = ()  # each variant at its best value of some axes; differences to the reference at its own
    committees: tuple[Row, ...] = ()  # means of the models of all seeds; differences to single models of the reference

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """The rows of the whole table."""
        return self.rows + self.tuned + self.committees

    @property
    def several_tests(self) -> bool:
        """Whether the runs were judged on more than one test."""
        return len({column.test for column in self.columns}) > 1

    def _unresolved(self, column: Column) -> set[str]:
        """Points with an error that is rounding."""
        return {row.point for row in self.all_rows if column in row.means and row.means[column].value < column.floor}

    @property
    def unresolved(self) -> tuple[Column, ...]:
        """Columns with errors that are rounding."""
        return tuple(column for column in self.columns if self._unresolved(column))

    def decimals(self, point: str, column: Column) -> int:
        """Decimals of the means at a point: the same for all, so that they can be compared as printed."""
        return decimals(row.means[column] for row in self.all_rows if row.point == point and column in row.means)

    def best(self, column: Column) -> set[tuple[str, str]]:
        """(point, variant) of the best mean at each point, where two variants or more have results, of the same seeds.

        Means that are printed alike are all the best.  Rows of tuned variants, whose points lack the axes that are
        tuned, are compared among themselves.
        """
        return self._best_among(self.rows, column) | self._best_among(self.tuned, column)

    def _best_among(self, rows: Sequence[Row], column: Column) -> set[tuple[str, str]]:
        there: dict[str, list[Row]] = {}
        for row in rows:  # a variant without a finished seed has none
            if column in row.means:
                there.setdefault(row.point, []).append(row)
        sign = -1.0 if column.metric in _LARGER_IS_BETTER else 1.0
        found: set[tuple[str, str]] = set()
        for at in there.keys() - self._unresolved(column):
            if len(there[at]) > 1 and len({row.seeds[column] for row in there[at]}) == 1:
                digits = self.decimals(at, column)
                printed = {row.variant: sign * round(row.means[column].value, digits) for row in there[at]}
                found |= {(at, name) for name, value in printed.items() if value == min(printed.values())}
        return found


def tabulate(
    title: str,
    found: Sequence[Found],
    variants: Sequence[str],
    points: Sequence[Mapping[str, Any]] = ({},),
    published: Mapping[str, Mapping[str, Published]] | None = None,
) -> Results:
    """Means over seeds of each variant at each point; the first variant is the reference of differences."""
    tests = dict.fromkeys(test for run in found for test in run.errors)
    columns = tuple(
        Column(test, metric)
        for test in tests
        for metric in METRICS
        if any(metric in run.errors.get(test, {}) for run in found)
    )
    rows = []
    for values in points:
        there = [run for run in found if run.values == values]
        reference = [run for run in there if run.variant == variants[0]]
        for variant in variants:
            runs = [run for run in there if run.variant == variant]
            if runs:
                numbers = _at((published or {}).get(variant, {}), values)
                rows.append(row_of(runs, reference, columns, published=_of_columns(numbers, columns)))
    return Results(title, columns, tuple(rows), tuple(found), variants[0])


def published_rows(
    published: Mapping[str, Mapping[str, Published]], points: Sequence[Mapping[str, Any]], default: str
) -> dict[tuple[str, str], Mapping[Column, float]]:
    """Published numbers by point and variant; ``default``: the test of numbers that name none."""
    rows = {(describe(values), variant): _at(numbers, values)
            for values in points for variant, numbers in published.items()}  # fmt: skip
    return {row: _by_column(numbers, default) for row, numbers in rows.items() if numbers}


def _at(numbers: Mapping[str, Published], values: Mapping[str, Any]) -> Published:
    """Published numbers of a variant at a point, which they name by all values of the axes or by the last alone."""
    last = str(list(values.values())[-1]) if values else ""
    return numbers.get(describe(values)) or numbers.get(last) or {}


def _of_columns(published: Published, columns: Sequence[Column]) -> Mapping[Column, float]:
    """Published numbers of the columns that there are."""
    files = {column.test for column in columns if column.metric not in _OF_SIMULATIONS}
    found = _by_column(published, next(iter(files)) if len(files) == 1 else MEAN if MEAN in files else TEST)
    return {column: found[column] for column in columns if column in found}


def _by_column(published: Published, default: str) -> Mapping[Column, float]:
    return {
        Column(SIMULATION if metric in _OF_SIMULATIONS else test, metric): number
        for test, numbers in by_test(published, default).items()
        for metric, number in _by_metric(numbers).items()
    }


def _by_metric(numbers: Numbers) -> Mapping[str, float]:
    if isinstance(numbers, Mapping):
        return numbers
    if isinstance(numbers, int | float):
        return {FORCES: numbers}
    return dict(zip((ENERGY, FORCES), numbers, strict=True))


def row_of(
    runs: Sequence[Found],
    reference: Sequence[Found],
    columns: Sequence[Column],
    *,
    published: Mapping[Column, float] | None = None,
) -> Row:
    """Means of runs of one variant and point, and differences to those of the reference variant."""
    own = {column: by_seed(runs, column) for column in columns}
    gaps: dict[Column, Difference] = {}
    if reference and runs[0].variant != reference[0].variant:
        compared = {column: difference(own[column], by_seed(reference, column), column.floor) for column in columns}
        gaps = {column: gap for column, gap in compared.items() if gap is not None}
    return Row(
        variant=runs[0].variant,
        values=runs[0].values,
        means={column: mean_of(list(errors.values())) for column, errors in own.items() if errors},
        differences=gaps,
        minutes=sum(run.seconds for run in runs) / len(runs) / 60,
        parameters=runs[0].parameters,
        seeds={column: frozenset(errors) for column, errors in own.items() if errors},
        published=published or {},
    )


def by_seed(runs: Sequence[Found], column: Column) -> dict[int, float]:
    """The error of each seed that has it."""
    found = {run.seed: run.errors.get(column.test, {}).get(column.metric, math.nan) for run in runs}
    return {seed: value for seed, value in found.items() if not math.isnan(value)}


def as_csv(results: Results) -> str:
    """Every number of every run and committee, one line for each error."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    axes = list(dict.fromkeys(key for run in results.found for key in run.values))
    writer.writerow(["variant", *axes, "seed", "test", "metric", "value", "seconds", "parameters", "folder"])
    for run in results.found:
        for test, errors in run.errors.items():
            for metric, value in errors.items():
                where = [run.variant, *(run.values.get(key, "") for key in axes), run.seed, test, metric]
                writer.writerow([*where, f"{value:.7g}", f"{run.seconds:.1f}", run.parameters, run.folder])
    for row in results.committees:
        for column, mean in row.means.items():
            where = [row.variant, *(row.values.get(key, "") for key in axes), "all", column.test, column.metric]
            writer.writerow([*where, f"{mean.value:.7g}", f"{60 * row.minutes:.1f}", row.parameters, ""])
    return stream.getvalue()


def means_as_csv(results: Results) -> str:
    """The table in numbers: one line for each error of each row, with its paired difference to the reference."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    axes = list(dict.fromkeys(key for row in results.rows for key in row.values))
    numbers = ["mean", "standard_error", *(f"difference_{which}" for which in ("percent", "low", "high")), "published"]
    writer.writerow(["variant", *axes, "test", "metric", "seeds", *numbers, "minutes", "parameters"])
    for row in results.all_rows:
        for column, mean in row.means.items():
            gap = row.differences.get(column)
            values = [mean.value, mean.error, *((gap.percent, gap.low, gap.high) if gap else (math.nan,) * 3)]
            values.append(row.published.get(column, math.nan))
            cells = ["" if math.isnan(value) else f"{value:.7g}" for value in values]
            point = {**row.values, **row.chosen}
            where = [row.label, *(point.get(key, "") for key in axes), column.test, column.metric, mean.count]
            writer.writerow([*where, *cells, f"{row.minutes:.2f}", row.parameters])
    return stream.getvalue()
