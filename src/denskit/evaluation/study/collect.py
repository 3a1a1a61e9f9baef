"""The results of a study from its folder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from denskit.evaluation.study.committees import Committee
from denskit.evaluation.study.config import MEAN, METRICS, RELAXATION, SIMULATION, TEST, StudyConfig
from denskit.evaluation.study.data import of_other_structures
from denskit.evaluation.study.judges import OF, SEEN, asked_of, left_to_judge
from denskit.evaluation.study.results import Found, Results, Row, by_seed, tabulate
from denskit.evaluation.study.running import StudyFolder
from denskit.evaluation.study.runs import points_of, runs_of
from denskit.evaluation.study.statistics import Mean, difference, mean_of
from denskit.evaluation.study.tuned import at_their_best
from denskit.models.model_file import read_header
from denskit.tasks.energy_shift import in_words, one_sided
from denskit.training.best_by import judged_by
from denskit.training.load_config import load_config
from denskit.training.run_folder import RunFolder


def collect(study: StudyConfig, folder: StudyFolder, committees: Sequence[Committee] = ()) -> Results:
    """Results of all runs that are finished, and of committees of them.  Raises ValueError where no run is."""
    found = []
    for run in runs_of(study):
        if judged := folder.judged(run):
            current = asked_of(study).keys() - left_to_judge(study, judged)  # not those of earlier files and settings
            errors = {test: each for test, each in judged["errors"].items() if test == TEST or test in current}
            if study.mean_of_tests and study.tests.keys() <= errors.keys():
                errors[MEAN] = _mean_over([errors[test] for test in study.tests])
            found.append(Found(
                variant=run.variant, values=run.point, seed=run.seed, folder=folder.run(run), errors=errors,
                seconds=judged["seconds"], parameters=judged["parameters"],
            ))  # fmt: skip
    if not found:
        raise ValueError(f"{folder.path}: no run of this study is finished yet")
    results = tabulate(study.title, found, list(study.variants), list(points_of(study)), study.published)
    remarks = (*trained_on(results.found), *ended_early(results.found), *other_energies(results.found))
    results = replace(results, warning=_warning(results.found), remarks=remarks)
    results = replace(results, committees=tuple(_committee_row(results, committee) for committee in committees))
    return at_their_best(study, results, _validated(study, folder))


def _warning(found: Sequence[Found]) -> str:
    """That variants of one point were judged on different structures, and where not at all points, at which; empty
    where they were not."""
    points: dict[str, list[str]] = {}  # by what is said of them
    for point in dict.fromkeys(run.point for run in found):
        said = of_other_structures([run for run in found if run.point == point], "test")
        points.setdefault(said, []).append(point)
    if len(points) == 1:
        return next(iter(points))
    return "; ".join(f"{said} ({'; '.join(there)})" for said, there in points.items() if said)


def trained_on(found: Sequence[Found]) -> Iterator[str]:
    """Tests with copies of structures that runs have trained on."""
    for test in dict.fromkeys(test for run in found for test in run.errors):
        judged = [run.errors[test] for run in found if SEEN in run.errors.get(test, {})]
        if judged:
            fewest, most = (f"{choose(errors[SEEN] for errors in judged):.0f}" for choose in (min, max))
            count = most if fewest == most else f"{fewest} to {most}"
            yield (
                f"{test}: {count} of {judged[0][OF]:.0f} structures are copies of structures that the runs have "
                "trained on, so errors there are too low, and say little about other structures."
            )


def ended_early(found: Sequence[Found]) -> Iterator[str]:
    """Simulations and relaxations without an end, which the means hide."""
    for run in found:
        name = ", ".join(filter(None, [f"'{run.variant}'", run.point, f"seed {run.seed}"]))
        simulated, relaxed = (run.errors.get(test, {}) for test in (SIMULATION, RELAXATION))
        if unstable := simulated.get("unstable"):
            many = f"{unstable:.0f} of {simulated['simulations']:.0f} simulations"
            yield f"{name}: {many} became unstable, and count in h(r) until then."
        if lost := relaxed.get("without_energy"):
            yield f"{name}: {lost:.0f} of {relaxed['references']:.0f} relaxations gave no energy, and are in no mean."


def other_energies(found: Sequence[Found]) -> Iterator[str]:
    """Tests whose energies are other ones than the first run has learned, for each."""
    for test in dict.fromkeys(test for run in found for test in run.errors if test != MEAN):
        errors = next(run.errors[test] for run in found if test in run.errors)
        if (mean := one_sided(errors)) is not None:
            yield f"{test}: {in_words(mean)}"


def _validated(study: StudyConfig, folder: StudyFolder) -> dict[str, float]:
    """Validation error of the kept models by the name of the run's folder, where the study tunes something."""
    errors = {}
    for run in runs_of(study) if study.best_of else ():
        path = folder.run(run)
        if folder.judged(run) and RunFolder(path).model.is_file():
            measured = read_header(RunFolder(path).model)["metadata"]["validation"]
            best_by = load_config(path).training.best_by
            errors[run.name] = measured[judged_by(best_by, measured)] if measured else math.nan
    return errors


def _committee_row(results: Results, committee: Committee) -> Row:
    """Its errors, and their differences to the mean error of single models of the reference variant and its seeds."""
    first, seeds = committee.runs[0], {run.seed for run in committee.runs}
    members = [
        run for run in results.found
        if run.variant == first.variant and run.values == first.point and run.seed in seeds
    ]  # fmt: skip
    reference = [run for run in results.found if run.variant == results.reference and run.values == first.point]
    errors = {
        column: committee.errors[column.test][column.metric]
        for column in results.columns
        if column.metric in committee.errors.get(column.test, {})
    }
    compared = {}
    for column, error in errors.items():
        single = {seed: value for seed, value in by_seed(reference, column).items() if seed in seeds}
        if single.keys() == seeds:
            compared[column] = difference({0: error}, {0: mean_of(list(single.values())).value}, column.floor)
    return Row(
        variant=f"{first.variant}, mean of {len(members)} models",
        values=first.point,
        means={column: Mean(error, math.nan, len(members)) for column, error in errors.items()},
        differences={column: gap for column, gap in compared.items() if gap is not None},
        minutes=sum(run.seconds for run in members) / 60,
        parameters=sum(run.parameters for run in members),
    )


def _mean_over(tests: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each error that all tests have, in the table's metrics."""
    shared = [metric for metric in METRICS if all(metric in errors for errors in tests)]
    return {metric: sum(errors[metric] for errors in tests) / len(tests) for metric in shared}
