"""The work of ``denskit study``: its file and forecast, its runs and their results."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console

from denskit.cli.errors import HINT
from denskit.cli.options import refuse
from denskit.cli.output import complain, give
from denskit.cli.study_progress import study_progress
from denskit.data.readers.formats import is_there
from denskit.evaluation.study import question, timing
from denskit.evaluation.study.collect import collect
from denskit.evaluation.study.committees import committees_of, require_one_split
from denskit.evaluation.study.config import StudyConfig, changed, file_name, load_study, write_study
from denskit.evaluation.study.data import problems_of, require_settings
from denskit.evaluation.study.presets_then import require_same_models
from denskit.evaluation.study.running import StudyFolder, run_all
from denskit.evaluation.study.runs import StudyRun, runs_of
from denskit.evaluation.study.tables import as_rich, published_table, write_tables
from denskit.files import locked, write_json
from denskit.runtime.device import gpus_to_share
from denskit.runtime.progress import counted, duration
from denskit.training.cost import Cost
from denskit.training.run_folder import RunFolder


def study_of_file(
    file: str, folder: StudyFolder, overrides: list[str], *, trial: bool, dry_run: bool
) -> tuple[Path, StudyConfig]:
    """A study, and its file in the folder, which is written unless it is the given one."""
    study, source = changed(load_study(file), overrides), folder.study
    require_one_split(study)
    if trial or (not overrides and Path(file).resolve() == source.resolve()):  # it may have grown since it was read
        if not trial:
            require_same_models(study, folder.run)
        return source, study
    source, study, said = folder.keep(study, draft=dry_run)
    for line in said:
        typer.echo(line, err=True)
    return source, study


def train_and_report(
    study: StudyConfig, source: Path, folder: StudyFolder, processes: int, *, dry_run: bool, asked: bool = False
) -> None:
    """Train the missing runs, show their progress, write and print the results.

    source: the study's file, which the processes of its runs read.  asked: by ``--question``.

    Raises typer.Exit: 130 after Ctrl-C, 1 where a run failed; ValueError where a file has changed since a run read it.
    """
    from denskit.analysis.study_plots import plot_study_results  # the processes of runs need no matplotlib

    console = Console()
    if dry_run and study.published:
        console.print(published_table(study))
    folder.require_inputs(study)
    for problem in problems_of(study):
        typer.echo(problem, err=True)
    if not dry_run:
        with locked(folder.path):  # raises where a command is at work here: trials beside it would mislead
            pass
    all_trained = all(folder.judged(run) for run in runs_of(study))
    costs = {} if all_trained else _costs(study, source, folder)
    warnings = _warnings(study, costs, asked) if costs else []
    for line in [*_announce(study, folder, costs, processes), *warnings]:
        typer.echo(line)
    if dry_run:
        return
    try:
        with locked(folder.path), study_progress(folder) as progress:
            jobs = run_all(
                study, lambda run: _command(source, folder, run), folder, processes=processes,
                gpus=gpus_to_share(timing.device_of(study)), watch=progress.show,
            )  # fmt: skip
    except KeyboardInterrupt as stop:
        complain(f"\nStopped; {_saved(study, folder)}. Continue with:")
        complain(f"  denskit study {shlex.quote(str(source))} -o {shlex.quote(str(folder.path))}")
        raise typer.Exit(128 + (stop.args[0] if stop.args else signal.SIGINT)) from None
    failed = [job for job in jobs if job.state == "failed"]
    for job in failed:
        complain(f"FAILED: {job.run.label}, seed {job.run.seed}: {_reason(folder.log(job.run))}")
    committees = committees_of(study, folder, say=lambda text: typer.echo(text, err=True))
    results = collect(study, folder, committees)
    give(
        folder=folder.path,
        title=results.title,
        runs=[asdict(run) for run in results.found],
        best=[{"variant": row.variant, "values": {**row.values, **row.chosen}} for row in results.tuned],
        committees=[{"runs": [run.name for run in one.runs], "errors": one.errors} for one in committees],
    )
    written = [*write_tables(results, folder.path), *plot_study_results(results, folder.path)]
    console.print(*as_rich(results, console.width), sep="\n")
    for line in question.noise_recovered(study, folder):
        typer.echo(line)
    typer.echo(f"Wrote {', '.join(path.name for path in written)} to {folder.path}")
    if failed:
        raise typer.Exit(1)


def _warnings(study: StudyConfig, costs: Mapping[str, Cost], asked: bool) -> list[str]:
    """What speaks against the comparison, and against a gain by DeNS: the data, else the length of its trainings."""
    found = question.data_warnings(study)
    variants: dict[str, list[str]] = {}
    for variant, messages in found.items():
        for message in messages:
            variants.setdefault(message, []).append(variant)
    said = [f"warning: {', '.join(names)}: {message}" for message, names in variants.items()]
    advice = question.advice(study, costs, warned=found, asked=asked)
    return [*said, *advice]


def _saved(study: StudyConfig, folder: StudyFolder) -> str:
    """How many runs go on from where they are, in words."""
    left = [folder.run(run) for run in runs_of(study) if not folder.finished(study, run)]
    saved = sum(RunFolder(run).last.is_file() for run in left)
    if not saved:
        return "no training had a state to save"
    return f"{saved} of {counted(len(left), 'unfinished run')} saved {'its' if saved == 1 else 'their'} state"


def _reason(log: Path) -> str:
    """Why a run failed, by its output."""
    said = _error_in(log.read_text("utf-8", errors="replace")) if log.is_file() else ""
    return f"{said} (see {log})" if said else f"see {log}"


def _error_in(output: str) -> str:
    """The first line of a command's last error; of other output the last line."""
    lines = [line for line in output.strip().removesuffix(HINT).splitlines() if line.strip()]
    errors = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
    return next(reversed(errors or lines), "").strip().removesuffix(".")


def _command(source: Path, folder: StudyFolder, run: StudyRun, *more: str) -> list[str]:
    return ["study", str(source), "--output", str(folder.path), "--task", run.name, *more]


def _costs(study: StudyConfig, source: Path, folder: StudyFolder) -> dict[str, Cost]:
    """Trials of all kinds of runs, each in a process of its own with one thread; kept in the study's folder.

    A kind whose trial failed has no cost, which is said: its runs may fail, too, but need not keep others from theirs.
    Raises ValueError where all failed.
    """
    costs, tried, failed = {}, timing.runs_to_try(study), {}
    if not all(_trial_file(folder, cell).is_file() for cell in tried):
        timing.require_structures(study)
    for cell, run in tried.items():
        path = _trial_file(folder, cell)
        if not path.is_file():
            typer.echo(f"timing a few steps: {cell}")
            done = subprocess.run(
                [sys.executable, "-m", "denskit", *_command(source, folder, run, "--trial")],
                env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                failed[cell] = (done.stderr or done.stdout).strip().removesuffix(HINT).rstrip()  # this has its own
                continue
        costs[cell] = Cost(**json.loads(path.read_text(encoding="utf-8")))
    if not costs:
        cell, said = next(iter(failed.items()))
        raise ValueError(f"{cell}: the trial failed:\n{said}")
    for cell, said in failed.items():
        typer.echo(f"warning: {cell}: the trial failed, so its time is not known: {_error_in(said)}", err=True)
    return costs


def _trial_file(folder: StudyFolder, cell: str) -> Path:
    return folder.path / "trials" / f"{file_name(cell)}.json"


def write_trial(study: StudyConfig, run: StudyRun, folder: StudyFolder) -> None:
    """Time a run, for the command that counts the time of its kind."""
    write_json(_trial_file(folder, run.cell), asdict(timing.trial(study, run)))


def _announce(study: StudyConfig, folder: StudyFolder, costs: Mapping[str, Cost], processes: int) -> list[str]:
    runs = runs_of(study)
    missing = [run for run in runs if not folder.finished(study, run)]
    untrained = [run for run in missing if not folder.judged(run)]
    timed = [run for run in untrained if run.cell in costs]
    seconds = [timing.seconds_of(run, run.config(folder.run(run)), costs[run.cell]) for run in timed]
    if not missing:
        return [f"{study.title}: nothing to do, {counted(len(runs), 'run')} finished"]
    if not untrained:
        return [f"{study.title}: {counted(len(missing), 'trained run')} to be judged on what is new"]
    working = timing.abreast(study, processes)
    done = f", {len(runs) - len(missing)} of {len(runs)} are done" if len(missing) < len(runs) else ""
    on_gpu = timing.on_gpus(study)
    where = counted(min(working, len(missing)), "GPU" if on_gpu else "core")
    on = "one GPU, one after another" if on_gpu and working == 1 else where
    longest = max(seconds, default=0.0)
    total = max(sum(seconds) / working, longest)
    known = f"about {duration(total)} on {on} (from a trial of a few steps; the longest run {duration(longest)})"
    beside = _not_counted(study, len(untrained) - len(timed))
    lines = [f"{study.title}: {counted(len(missing), 'run')}{done}; {known if timed else 'no time is known'}{beside}"]
    together = min(processes, len(missing))
    if on_gpu and together > working:
        lines.append(
            f"note: {together} runs share {counted(working, 'GPU')}; on one H100 4 took 0.7 of that time, and 14 with "
            "NVIDIA MPS 0.23 (docs/gpu.md)"
        )
    elif together > working:
        lines.append(
            f"note: --processes {processes} shares {counted(working, 'core')}, and is no faster than {working}"
        )
    return lines


def _not_counted(study: StudyConfig, untimed: int) -> str:
    """What a forecast leaves out, in words; ``untimed``: runs whose trial failed."""
    after = [f"the {name}" for name in ("simulation", "relaxation") if getattr(study, name) is not None]
    if study.tests:
        after.append(f"the {counted(len(study.tests), 'file')} of tests")
    found = [f"{' and '.join(after)} of each run"] if after else []
    if study.committees:
        found.append("the committees")
    if untimed:
        found.append(f"{counted(untimed, 'run')} whose trial failed")
    return f", plus {', and '.join(found)}" if found else ""


def study_of_question(
    file: Path, folder: StudyFolder, frames: int | None, hours: float | None, processes: int, overrides: list[str],
    *, dry_run: bool,
) -> tuple[Path, StudyConfig]:  # fmt: skip
    """The study file in the folder; written where it is absent, when the length of its trainings is known."""
    if not is_there(file):
        raise FileNotFoundError(f"{file}: no such file of structures")
    keys = {override.partition("=")[0] for override in overrides}
    lengths = ", ".join(sorted(question.LENGTHS & keys))
    refuse((hours is not None and lengths, f"--hours chooses the length of the trainings; leave out {lengths}"))
    to_fit = None if folder.has_begun() else hours
    kept = load_study(folder.study) if folder.study.is_file() and to_fit is None else None
    again = None if kept is None else question.asked_again(kept, file, frames, overrides)
    study, said = again or question.asked_anew(file, frames, overrides, kept)
    if to_fit is not None:
        return _sized_question(study, said, file, folder, to_fit, processes, both="axes.training.lr" in keys)
    source, study, more = folder.keep(study, draft=dry_run)
    for line in [*said, *more]:
        typer.echo(line)
    steps = "; its trainings keep their length: for another give another --output" if hours is not None else ""
    continues = kept is not None and (study == kept or folder.has_begun())
    typer.echo(f"{folder.study} is there: continuing that study{steps}" if continues else f"Wrote {source}")
    return source, study


def _sized_question(
    study: StudyConfig, said: list[str], file: Path, folder: StudyFolder, hours: float, processes: int, *, both: bool
) -> tuple[Path, StudyConfig]:
    """Write a question that has trained nothing yet with as many steps as ``hours`` allow; a draft until they are
    known, with whose trials the same command goes on after a kill.  ``both``: as of :func:`sized`."""
    source, draft = folder.study, folder.draft
    folder.require_own()
    # trials that are there are those of this question
    if source.is_file() and question.same_question(study, load_study(source), file):
        write_study(study, draft)
    for line in said:
        typer.echo(line)
    if not (draft.is_file() and load_study(draft) == study):
        folder.forget("has trainings")
    write_study(study, draft)
    costs, working = _costs(study, draft, folder), timing.abreast(study, processes)
    study, shortened = question.sized(study, costs, hours, working, both=both)
    for line in shortened:
        typer.echo(line)
    for line in folder.write(study):
        typer.echo(line)
    draft.unlink(missing_ok=True)
    typer.echo(f"Wrote {source}")
    return source, study


def slurm_script(study: StudyConfig, source: Path, folder: StudyFolder) -> str:
    """An array with one job for each run.  It names the runs: a study that grows gives them other numbers.

    Raises ValueError and FileNotFoundError, before the jobs wait in a queue, where a run could not start.
    """
    folder.require_inputs(study)
    require_settings(study)
    runs = [run.name for run in runs_of(study)]
    (folder.path / "logs").mkdir(parents=True, exist_ok=True)  # SLURM opens its logs there before the jobs
    logs, command = shlex.quote(f"{folder.path.resolve()}/logs/%A_%a.log"), ["denskit", "study", str(source.resolve())]
    command += ["--output", str(folder.path.resolve())]
    names = "\n".join(f"  {shlex.quote(run)}" for run in runs)
    return f"""#!/bin/bash
#SBATCH --job-name=denskit-study
#SBATCH --array=0-{len(runs) - 1}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
##SBATCH --gpus-per-task=1         # on GPUs: remove one of the first two signs
#SBATCH --time=24:00:00           # of each run; one that ends early is continued by the next sbatch
#SBATCH --signal=B:TERM@120       # two minutes before the end: save
#SBATCH --output={logs}
runs=(
{names}
)
cd {shlex.quote(str(Path.cwd()))} || exit 1
# Runs that are finished return at once, so the same script continues a study.
# When all are done:  {shlex.join(command)}
export OMP_NUM_THREADS=1
run="${{runs[${{SLURM_ARRAY_TASK_ID:?submit this script with sbatch}}]:?no run of this number}}"
exec {shlex.join(command)} --task "$run\""""
