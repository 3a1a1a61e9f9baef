"""``denskit study``: the same training in several variants, repeated over seeds, as one table and its plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Column

from denskit.cli.options import refuse
from denskit.cli.output import give, show_table

if TYPE_CHECKING:
    from denskit.evaluation.study.config import StudyConfig
    from denskit.evaluation.study.running import StudyFolder

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings of all runs, such as data.path=mine.extxyz, or of the study: seeds=5, tests.hot=FILE.",
        metavar="KEY=VALUE ...",
    ),
]


def study(
    file: Annotated[
        str | None,
        typer.Argument(help="Study file (YAML), shipped study, or with --question your structures.", metavar="STUDY"),
    ] = None,
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder; default runs/study-NAME.", show_default=False)
    ] = None,
    question: Annotated[
        Literal["dens"] | None, typer.Option(help="Write a study that answers: does DeNS help on this file?")
    ] = None,
    frames: Annotated[int | None, typer.Option(help="With --question: training frames; default all.", min=1)] = None,
    hours: Annotated[
        float | None, typer.Option(help="With --question: time budget, from which steps are chosen.", min=0)
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="Trainings at once, one thread each; default: the number of cores.", min=1)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the missing runs and their time, and stop.")
    ] = False,
    task: Annotated[
        str | None, typer.Option(help="One run alone, as a job of a queue: its number, or its name.", metavar="RUN")
    ] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="Print a SLURM array script for the runs, and stop.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the shipped studies, and stop.")] = False,
    trial: Annotated[bool, typer.Option("--trial", hidden=True)] = False,
) -> None:
    """Compare trainings: variants x axes x seeds, paired by seed, with error bars.

    Finished runs are kept: the same command continues an interrupted study. Writes table.md, table.tex,
    means.csv (the table), table.csv (every run) and plots to the output folder.

    Examples:

      denskit study mine.extxyz --question dens --hours 2

      denskit study my_study.yaml

      denskit study my_study.yaml --task with-DeNS_seed-0

      denskit study --list
    """
    if list_:
        _list()
        return
    if file is None:
        raise typer.BadParameter("give a study file, the name of a shipped study, or structures with --question dens")
    if (hours is not None or frames is not None) and question is None:
        raise ValueError("--hours and --frames shape the study that --question writes; a study file says its own steps")
    refuse(((task is not None) + slurm + dry_run > 1, "--task, --slurm and --dry-run are different work; give one"))
    from denskit.cli import study_work as work
    from denskit.evaluation.study.config import file_name
    from denskit.evaluation.study.running import StudyFolder
    from denskit.runtime.threads import cores

    folder = StudyFolder(output or Path("runs") / f"study-{file_name(Path(file).stem)}")
    if question is not None:
        source, chosen = work.study_of_question(
            Path(file), folder, frames, hours, processes or cores(), overrides or [], dry_run=dry_run
        )
    else:
        source, chosen = work.study_of_file(file, folder, overrides or [], trial=trial, dry_run=dry_run)
    if task is not None:
        _one_run(chosen, task, folder, trial=trial)
    elif slurm:
        typer.echo(work.slurm_script(chosen, source, folder))
    else:
        try:
            work.train_and_report(
                chosen, source, folder, processes or cores(), dry_run=dry_run, asked=question is not None
            )
        finally:
            if source == folder.draft:
                source.unlink(missing_ok=True)


def _one_run(study: StudyConfig, name: str, folder: StudyFolder, *, trial: bool) -> None:
    """Train and judge one run of a study, or time a few steps of it."""
    from denskit.cli.study_work import write_trial
    from denskit.evaluation.study.running import train_and_judge
    from denskit.evaluation.study.runs import find_run

    run = find_run(study, name)
    if trial:
        write_trial(study, run, folder)
        return
    if folder.finished(study, run):
        typer.echo(f"{run.label}, seed {run.seed}: finished, nothing to do")
    train_and_judge(study, run, folder, progress=True)


def _list() -> None:
    from denskit.evaluation.study.config import load_study
    from denskit.evaluation.study.runs import runs_of
    from denskit.presets import study_names

    studies = {name: load_study(name) for name in study_names()}
    give(studies={name: study.title for name, study in studies.items()})
    rows = ((name, str(len(runs_of(study))), study.title) for name, study in studies.items())
    show_table((Column("study", no_wrap=True), Column("runs", justify="right"), "comparison"), rows)
