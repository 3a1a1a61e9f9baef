"""Each variant of a study at its best value of some axes, chosen by validation errors.

At equal settings one variant may look better since they suit it: 25 structures of ethanol gain by DeNS at a learning
rate of 1e-3, and as much without it by half of that rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from denskit.evaluation.study.config import StudyConfig, describe
from denskit.evaluation.study.results import Found, Results, Row, row_of
from denskit.evaluation.study.runs import points_of
from denskit.evaluation.study.statistics import mean_of

Values = Mapping[str, Any]  # of axes


def at_their_best(study: StudyConfig, results: Results, validated: Mapping[str, float]) -> Results:
    """The results with a row for each variant at each point of the other axes: its errors at its best values.

    ``validated``: validation errors by the name of a run's folder.  The best values have the lowest mean over the
    seeds.  A value that lacks a seed's run is not chosen, which a remark says; a variant whose values all lack one
    has no row.  Differences are to the first variant at its own best.
    """
    rows: list[Row] = []
    remarks: list[str] = []
    rests: list[Values] = []
    for point in points_of(study) if study.best_of else ():
        if (rest := _without(point, study.best_of)) not in rests:
            rests.append(rest)
    for rest in rests:
        points = [point for point in points_of(study) if _without(point, study.best_of) == rest]
        best: dict[str, list[Found]] = {}
        for variant in study.variants if len(points) > 1 else ():
            errors = []  # of the points
            groups = [
                [run for run in results.found if (run.variant, run.values) == (variant, point)] for point in points
            ]
            for point, runs in zip(points, groups, strict=True):
                errors.append(_validation_error(runs, study.seeds, validated))
                if errors[-1] == math.inf:
                    remarks.append(f"'{variant}' lacks finished runs of {describe(point)}, which is not chosen.")
            best[variant] = groups[errors.index(min(errors))] if min(errors) < math.inf else []
        for runs in filter(None, best.values()):
            row = row_of(runs, best[results.reference], results.columns)
            chosen = {axis: runs[0].values[axis] for axis in study.best_of}
            rows.append(replace(row, values=rest, chosen=chosen))
    return replace(results, tuned=tuple(rows), remarks=(*results.remarks, *remarks))


def _validation_error(runs: Sequence[Found], seeds: Sequence[int], validated: Mapping[str, float]) -> float:
    """Mean over the seeds; infinite where one lacks a run or its validation."""
    errors = {run.seed: validated.get(run.folder.name, math.nan) for run in runs}
    known = [errors[seed] for seed in seeds if not math.isnan(errors.get(seed, math.nan))]
    return mean_of(known).value if len(known) == len(seeds) else math.inf


def _without(values: Values, axes: Sequence[str]) -> Values:
    return {axis: value for axis, value in values.items() if axis not in axes}
