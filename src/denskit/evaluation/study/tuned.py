"""Each variant of a study at its best value of some axes, chosen by validation errors.

At equal settings one variant may look better since they suit it: 25 structures of ethanol gain by DeNS at a learning
rate of 1e-3, and as much without it by half of that rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from denskit.evaluation.study.results import Found, Results, Row, row_of
from denskit.evaluation.study.statistics import mean_of

Values = Mapping[str, Any]  # of axes


def at_their_best(
    results: Results, variants: Sequence[str], axes: Sequence[str], validated: Mapping[str, float]
) -> tuple[Row, ...]:
    """A row for each variant at each point of the other axes: its errors at its best values of ``axes``.

    ``validated``: validation errors by the name of a run's folder.  The best values have the lowest mean over the
    seeds at which all values have a run; a variant without such a seed has no row.  Differences are to the first
    variant at its own best.
    """
    rows: list[Row] = []
    for point in _different(_without(run.values, axes) for run in results.found) if axes else ():
        there = [run for run in results.found if _without(run.values, axes) == point]
        best = {name: _best([run for run in there if run.variant == name], validated) for name in variants}
        for name, runs in best.items():
            if runs:
                chosen = _named({axis: runs[0].values[axis] for axis in axes})
                rows.append(row_of(runs, best[variants[0]], results.columns, name=f"{name}, {chosen}", values=point))
    return tuple(rows)


def _named(chosen: Values) -> str:
    """``best lr 0.001``."""
    return ", ".join(f"best {axis.rsplit('.', 1)[-1]} {value}" for axis, value in chosen.items())


def _best(runs: Sequence[Found], validated: Mapping[str, float]) -> list[Found]:
    """The runs of the values with the lowest mean validation error over their common seeds."""
    groups = [[run for run in runs if run.values == values] for values in _different(run.values for run in runs)]
    if len(groups) < 2:
        return []  # nothing to choose from
    errors = [{run.seed: validated.get(run.folder.name, math.nan) for run in group} for group in groups]
    seeds = set.intersection(*({seed for seed, error in one.items() if not math.isnan(error)} for one in errors))
    if not seeds:
        return []
    means = [mean_of([one[seed] for seed in seeds]).value for one in errors]
    return [run for run in groups[means.index(min(means))] if run.seed in seeds]


def _without(values: Values, axes: Sequence[str]) -> Values:
    return {axis: value for axis, value in values.items() if axis not in axes}


def _different(several: Iterable[Values]) -> list[Values]:
    found: list[Values] = []
    for values in several:
        if values not in found:
            found.append(values)
    return found
