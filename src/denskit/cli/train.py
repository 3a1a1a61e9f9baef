"""``denskit train``: a preset or a YAML file, changed by ``key=value``, becomes a run folder."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from denskit.cli.options import refuse
from denskit.cli.output import OUTPUT, give, speaks
from denskit.runtime.progress import counted, duration

if TYPE_CHECKING:
    from denskit.training.forecast import Forecast
    from denskit.training.settings import RunConfig


def train(
    preset: Annotated[
        str, typer.Argument(help="A preset (`denskit presets`) or a YAML file.", metavar="PRESET|CONFIG")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Settings, such as training.max_steps=5000 seed=1 device=cuda:1 (denskit presets settings).",
            metavar="KEY=VALUE ...",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the output folder, if there is one.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved settings, time and memory, and stop.")
    ] = False,
    processes: Annotated[
        int, typer.Option(help="Processes on this machine; each batch and the cores are divided among them.", min=1)
    ] = 1,
    slurm: Annotated[bool, typer.Option("--slurm", help="Print a SLURM script for the training, and stop.")] = False,
    output: Annotated[str | None, typer.Option("--output", "-o", help="The run folder, as output=FOLDER.")] = None,
) -> None:
    """Train a model.

    Ctrl-C saves a checkpoint. Fails where the errors are far above those of predicting zero.

    Examples:

      denskit train equiformer data.path=mine.extxyz training.budget="2 hours" output=runs/mine

      denskit train equiformer data.path=mine.extxyz task=dens training.max_steps=20000 output=runs/mine

      denskit train md17/equiformer_l2_dens data.path=md17_aspirin.npz data.molecule=aspirin

      denskit train equiformer data.train=a.extxyz data.valid=b.extxyz data.test=c.extxyz --dry-run

      denskit train equiformer data.path=mine.extxyz --processes 4

      denskit train equiformer data.path=mine.extxyz output=runs/mine --slurm > job.sh
    """
    import yaml

    from denskit.training.load_config import load_config

    refuse(
        (slurm and dry_run, "--slurm and --dry-run both print and stop; give one"),
        (slurm and processes > 1, "--processes is not for --slurm, whose script divides the work by its own lines"),
    )
    given = [preset, *_settings(overrides or [], output)]
    config = load_config(preset, given[1:])
    if slurm:
        from denskit.cli.slurm import training_script

        Path(config.output).parent.mkdir(parents=True, exist_ok=True)  # SLURM opens its log there before the job
        typer.echo(training_script(given, Path(config.output)))
        return
    if dry_run:
        document, expected = _planned(config) if processes == 1 else _planned_together(config, given, processes)
        if speaks():
            typer.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)
            typer.echo(expected, err=True)
            give(config=document, expected=expected)
        return

    if processes > 1:
        _together([*given, *(["--resume"] if resume else [])], processes)
        _give(Path(config.output))
        return

    from denskit.evaluation.judged_structures import has_test
    from denskit.training.run import train as train_model

    run = train_model(config, resume=resume, progress=True)
    if speaks():
        _give(run)
        name = shlex.quote(str(run))
        evaluate = f"denskit evaluate {name}{'' if has_test(run) else ' NAME=FILE'}"
        typer.echo(f"Done: {run}\nNext:  {evaluate}   |   denskit report {name}")


def _settings(overrides: list[str], output: str | None) -> list[str]:
    """All settings, with that of ``-o``.  Raises ValueError where the folder is given twice."""
    if output is None:
        return overrides
    refuse((any(text.startswith("output=") for text in overrides), "give -o or output=, not both"))
    return [*overrides, f"output={output}"]


def _together(arguments: list[str], processes: int, output: IO[str] | None = None) -> None:
    """Call this verb in processes of their own; raises typer.Exit where one of them fails."""
    from denskit.runtime.launch import run_together

    if "RANK" in os.environ:
        raise ValueError("--processes starts processes on one machine, and torchrun has started some already; use one")
    quiet = ["--quiet"] if OUTPUT.quiet and output is None else []
    code = run_together(["train", *arguments, *quiet], processes, output, OUTPUT.err)
    if code:
        raise typer.Exit(code)


def _planned_together(config: RunConfig, arguments: list[str], processes: int) -> tuple[dict[str, Any], str]:
    """As :func:`_planned`, for several processes: their own trial, of which the first gives the results."""
    from denskit.training.forecast import examined

    with contextlib.suppress(FileNotFoundError):  # the processes say so
        examined(config, _say)
    typer.echo(
        f"timing a few steps of {processes} processes: about a minute, longer where a step takes seconds", err=True
    )
    with tempfile.TemporaryFile("w+", encoding="utf-8") as results:
        _together([*arguments, "--dry-run", "--quiet", "--json"], processes, results)
        results.seek(0)
        found = json.load(results)
    return found["config"], found["expected"]


def _give(run: Path) -> None:
    from denskit.models.model_file import IN_RUNS, read_header

    give(run=run, validation=read_header(run / IN_RUNS)["metadata"]["validation"])


def _planned(config: RunConfig) -> tuple[dict[str, Any], str]:
    """Settings as the data decide them, warnings and the cost in words; as given where the data are not there."""
    from denskit.training.checks import warnings_before
    from denskit.training.forecast import forecast_of
    from denskit.training.hints import hints_before

    try:
        found = forecast_of(config, _say)
    except FileNotFoundError as error:
        return config.document(), f"note: {error}; the size of the model and the cost are open"
    planned = found.planned
    said = [*found.messages, *warnings_before(planned), *hints_before(planned)]
    return planned.config.document(), "\n".join([*said, _in_words(found)])


def _say(line: str) -> None:
    """Before the results."""
    if speaks():
        typer.echo(line, err=True)


def _in_words(forecast: Forecast) -> str:
    from denskit.training.cost import LONG_VALIDATIONS
    from denskit.training.loader import steps_per_epoch

    training, cost = forecast.planned.config.training, forecast.cost
    validations = ""
    if training.budget is not None:
        steps = cost.steps_of(training)
        epochs = steps // steps_per_epoch(cost.train, training.batch_size, training.drop_last)
        length = f"{counted(steps, 'step')} ({counted(epochs, 'epoch')}) in {training.budget}"
    else:
        whole, share = cost.training_seconds(training), cost.validation_seconds(training)
        length = f"about {duration(whole)} of training"
        if share > LONG_VALIDATIONS * whole:
            validations = f" (validations {duration(share)})"
    shared = f" on {forecast.processes} processes" if forecast.processes > 1 else ""
    step = f"{1000 * cost.step:.0f} ms a step{validations}"
    return f"{length}{shared}, at {step}; {cost.memory:.0f} MiB of memory a process"
