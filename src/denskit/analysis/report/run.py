"""Reports of runs: the sections of one run, several runs side by side, and a study."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from denskit.analysis.judged import Judged
from denskit.analysis.plots import curves_figure
from denskit.analysis.report.committee import committee
from denskit.analysis.report.dens import dens
from denskit.analysis.report.errors import parity, shares, trends
from denskit.analysis.report.page import Part, Picture, Section, folded, html_of, paragraph, table
from denskit.analysis.report.settings import cost, environment, settings
from denskit.analysis.report.stability import stability_of
from denskit.analysis.report.structures import worst
from denskit.analysis.report.summary import error_table, errors_by_set, headline, summary
from denskit.analysis.run_results import RunResults
from denskit.analysis.study_plots import study_figures
from denskit.evaluation.study.collect import collect
from denskit.evaluation.study.config import load_study
from denskit.evaluation.study.results import Results
from denskit.evaluation.study.running import StudyFolder
from denskit.evaluation.study.tables import as_cells, note

MOST_RUNS = 6  # with all their sections in a page of several runs
_CURVES = (
    "Mean absolute errors over the training: validation with dots, training as thin lines. With DeNS part of the "
    "training structures are corrupted, which makes the training errors larger, that of the energy above all."
)
_STUDY_CURVES = (
    "Validation errors of the forces over the training: mean over seeds, and the range from lowest to highest."
)
_STUDY_AXES = "Test errors; bars are standard errors over seeds."

SECTIONS: dict[str, Callable[[RunResults], Section]] = {
    "summary": summary,
    "curves": lambda run: _curves([run]),
    "parity": lambda run: _judged(run, parity),
    "errors": lambda run: _judged(run, lambda judged: shares(judged, run.groups)),
    "trends": lambda run: _judged(run, trends),
    "structures": lambda run: _judged(run, worst),
    "dens": dens,
    "stability": stability_of,
    "cost": cost,
    "settings": settings,
    "environment": environment,
}


def run_sections(run: RunResults, names: Sequence[str] = tuple(SECTIONS)) -> list[Section]:
    """The sections of a run that have something to show."""
    found = [SECTIONS[name](run) for name in names]
    return [section for section in found if section.parts]


def _judged(run: RunResults, section: Callable[[Judged], Section]) -> Section:
    return section(run.judged) if isinstance(run.judged, Judged) else Section("", [])


def _curves(runs: Sequence[RunResults]) -> Section:
    """Errors of one or several runs over the training."""
    logged = {run.name: run.columns for run in runs if len(run.columns["step"])}
    if not logged:
        return Section("Learning curves", [paragraph("No step is logged yet.")])
    return Section("Learning curves", [Picture("learning_curves", curves_figure(logged), _CURVES)])


def several_sections(runs: Sequence[RunResults]) -> list[Section]:
    """Several runs: errors side by side, learning curves, the runs as a committee, each run folded."""
    found = [_side_by_side(runs), _curves(runs), committee(runs), _each(runs)]
    return [section for section in found if section.parts]


def _side_by_side(runs: Sequence[RunResults]) -> Section:
    errors = {run.name: errors for run in runs if (errors := next(iter(errors_by_set(run).values()), None))}
    return Section("Errors", [error_table(errors)] if errors else [])


def _each(runs: Sequence[RunResults]) -> Section:
    """A line for each run, and its sections folded for the first runs."""
    parts = []
    for run in runs[:MOST_RUNS]:
        told = headline(run) if isinstance(run.judged, Judged) else run.judged
        content = "\n".join(f"<h3>{section.title}</h3>\n{html_of(section.parts)}" for section in run_sections(run))
        parts.append(folded(f"{run.name}. {told}", content))
    if len(runs) > MOST_RUNS:
        rest = ", ".join(str(run.path) for run in runs[MOST_RUNS:])
        parts.append(paragraph(f"Not shown here; `denskit report RUN` makes a page of each: {rest}"))
    return Section("Runs", parts)


def study_sections(path: Path, *, device: str = "auto") -> list[Section]:
    """Table, learning curves, errors over the axes and runs of a study.  Raises ValueError where no run is finished."""
    study = load_study(path / "study.yaml")
    results = collect(study, StudyFolder(path))
    header, rows = as_cells(results)
    parts: list[Part] = [table(header, rows), paragraph(note(results))]
    for name, figure in study_figures(results).items():
        parts.append(Picture(name, figure, _STUDY_CURVES if name == "learning_curves" else _STUDY_AXES))
    runs = {run.folder: RunResults(run.folder, device=device) for run in results.found}
    found = [Section("Results", parts), *_committees(results, runs), _each(list(runs.values()))]
    return [section for section in found if section.parts]


def _committees(results: Results, runs: Mapping[Path, RunResults]) -> Iterator[Section]:
    """The seeds of each variant at each point."""
    for row in results.rows:
        seeds = [run.folder for run in results.found if (run.variant, run.values) == (row.variant, row.values)]
        words = f"{row.variant}, {row.point}" if row.point else row.variant
        yield committee([runs[folder] for folder in seeds], f"Seeds of {words} as a committee")
