"""``denskit demo``: DeNS on 25 shipped structures, in minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from denskit.cli.output import complain, give

if TYPE_CHECKING:
    from denskit.evaluation.study.config import StudyConfig
    from denskit.evaluation.study.running import StudyFolder

FORCES, RELATIVE = "forces_mae_meV_per_A", "forces_mae_relative_to_zero"
NOISE = "noise_error_relative_to_zero_with_test_forces"
LIMIT = 0.8  # largest ratio of an error to that of predicting zero


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the two runs, tables, plots.")] = Path(
        "runs/demo"
    ),
    steps: Annotated[int | None, typer.Option(help="Training steps of each; default: the study's.", min=1)] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier demo.")] = False,
) -> None:
    """Train a small model on 25 shipped structures, without and with DeNS side by side; judge both on unseen ones.

    This is the first seed of the study `demo`; `denskit study demo` runs five seeds and gives the confidence interval.
    Ctrl-C saves both trainings, and the same command continues them.

    Fails (exit code 1) where forces or noise are not clearly better than predicting zero.

    Example:  denskit demo --output runs/demo
    """
    from denskit.cli.study_work import train_and_report
    from denskit.evaluation.study.config import load_study, write_study
    from denskit.evaluation.study.presets_then import require_same_models
    from denskit.evaluation.study.running import StudyFolder
    from denskit.evaluation.study.runs import runs_of
    from denskit.runtime.threads import cores

    study = load_study("demo")
    settings = study.settings if steps is None else {**study.settings, "training.max_steps": steps}
    study = study.model_copy(update={"settings": settings, "seeds": study.seeds[:1]})
    folder = StudyFolder(output)
    source = folder.study
    finished = all(folder.finished(study, run) for run in runs_of(study))
    folder.require_own()
    begun = source.is_file()
    if begun and (not _continues(source, study, finished=finished) or force):
        if not force:
            raise ValueError(f"{output} holds a demo already: give another --output, or replace it with --force")
        folder.clear(study)
    require_same_models(study, folder.run)
    write_study(study, source)
    train_and_report(study, source, folder, cores(), dry_run=False)
    _judge(study, folder)


def _continues(source: Path, study: StudyConfig, *, finished: bool) -> bool:
    """Whether the folder holds an unfinished demo with these settings; a finished one may be removed.

    Raises ValueError where the folder holds something else.
    """
    from denskit.evaluation.study.config import load_study

    before = load_study(source)
    if before.model_copy(update={"settings": study.settings}) != study:
        raise ValueError(f"{source.parent} holds another study; give another --output (nothing changed)")
    return before == study and not finished


def _judge(study: StudyConfig, folder: StudyFolder) -> None:
    """Plot both runs on one page, print the comparison, and exit with 1 where a run learnt nothing."""
    from denskit.analysis.judged import predictions_of
    from denskit.analysis.plots import plot_overview
    from denskit.evaluation.study.runs import runs_of

    runs = {run.variant: run for run in runs_of(study)}
    results = {variant: json.loads(folder.result(run).read_text("utf-8")) for variant, run in runs.items()}
    folders = {variant: folder.run(run) for variant, run in runs.items()}
    forces = {variant: pair for variant, path in folders.items() if (pair := predictions_of(path).forces) is not None}
    plot_overview(folders, forces, folder.path / "overview.png")
    give(folder=folder.path, results=results)
    for line in _verdict(results):
        typer.echo(line)
    typer.echo(f"Plots and tables: {folder.path}")
    errors = {f"forces {variant}": result["errors"]["test"][RELATIVE] for variant, result in results.items()}
    errors["noise with DeNS"] = results["with DeNS"]["noise"][NOISE]
    failed = [f"{what} {error:.2f}" for what, error in errors.items() if error >= LIMIT]
    if failed:
        complain(f"FAILED: errors relative to predicting zero: {', '.join(failed)} (wanted: below {LIMIT})")
        raise typer.Exit(1)


def _verdict(results: dict[str, Any]) -> list[str]:
    plain, dens = (results[variant]["errors"]["test"][FORCES] for variant in ("without DeNS", "with DeNS"))
    change = 100 * (dens / plain - 1)
    return [
        f"Forces of unseen structures: {plain:.1f} meV/Å without DeNS, {dens:.1f} with it ({change:+.1f} %).",
        f"DeNS recovers noise from encoded forces with {results['with DeNS']['noise'][NOISE]:.2f} of the error of "
        "predicting none.",
        "One seed is a sample: five (`denskit study demo`) gave -9 %, from -6 to -14 %. For your data: denskit study "
        "FILE --question dens",
    ]
