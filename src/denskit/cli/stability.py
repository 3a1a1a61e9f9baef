"""``denskit stability``: stability and h(r) of simulations, by the published protocol for MD17."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from denskit.cli.opening import gains_by_recording, open_potential
from denskit.cli.options import Device, Dtype, Kernels, ModelPath, Processes, Resume, Skin, refuse
from denskit.cli.output import complain, give, show_table
from denskit.cli.stopping import stoppable
from denskit.files import sha256_of
from denskit.runtime.progress import counted

if TYPE_CHECKING:
    from denskit.data.base import Source
    from denskit.simulation.stability.protocol import StudySettings
    from denskit.simulation.stability.results import Study


def stability(
    model: ModelPath,
    file: Annotated[
        Path | None, typer.Argument(help="Reference structures of one molecule; default: the run's test split.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write to; default: RUN/stability.")
    ] = None,
    time: Annotated[float, typer.Option(help="ps of each simulation.")] = 300.0,
    replicas: Annotated[int, typer.Option(help="Simulations, side by side, with momenta of their own.", min=1)] = 5,
    temperature: Annotated[float, typer.Option(help="K, of the thermostat.")] = 500.0,
    timestep: Annotated[float, typer.Option(help="fs.")] = 0.5,
    nve: Annotated[
        float, typer.Option(help="ps, at most --time, without a thermostat: energy drift; 0: no.", min=0)
    ] = 5.0,
    seed: Annotated[int, typer.Option(help="Of momenta.", min=0)] = 0,
    resume: Resume = False,
    device: Device = "auto",
    dtype: Dtype = None,
    skin: Skin = 0.5,
    kernels: Kernels = "auto",
    processes: Processes = 1,
) -> None:
    """Measure how long simulations of a molecule stay stable, and the error of h(r), as the paper does for MD17.

    Defaults are the published protocol (Nosé-Hoover, 500 K, 0.5 fs, 300 ps, five simulations). Writes stability.json,
    stability.png, h_of_r.csv and series.csv. Ctrl-C saves; --resume continues, also to a larger --time.

    Examples:

      denskit stability runs/mine --time 20

      denskit stability runs/mine rmd17_ethanol.extxyz --time 300 -o stability
    """
    from denskit.evaluation.judged_structures import source_of
    from denskit.simulation.stability.protocol import StudySettings

    if output is None and not model.is_dir():
        raise ValueError(f"{model} is a model file: say with --output where the results go")
    refuse((not 0 < time < float("inf"), f"--time: {time:g}: wanted a number of ps above 0"))
    settings = StudySettings(
        length=time, seeds=replicas, seed=seed, temperature=temperature, timestep=timestep, nve=nve
    )
    reference = source_of(model, file, "test")
    title = f"simulations with {model}" + (f" by {file}" if file else "")
    made = {
        "device": device, "dtype": dtype, "skin": skin, "kernels": kernels, "processes": min(processes, replicas),
        "compile": gains_by_recording(device, replicas * len(reference[0])),
    }  # fmt: skip
    _simulate(model, reference, settings, output or model / "stability", title, resume=resume, **made)


def _simulate(
    model: Path, reference: Source, settings: StudySettings, folder: Path, title: str, *, resume: bool, **made: Any
) -> None:
    """Run the study with its progress bar, print the table and write the files."""
    from denskit.analysis.plots import save_figure
    from denskit.analysis.simulation_plots import stability_figure
    from denskit.simulation.stability.folder import CURVES, SERIES, SUMMARY, StudyFiles
    from denskit.simulation.stability.protocol import Reference
    from denskit.simulation.stability.study import run_study
    from denskit.training.run_folder import model_file

    potential = open_potential([model], **made)
    truth = Reference.of(reference)
    with stoppable(Console()) as work:
        study = run_study(
            potential, truth, settings, folder=folder, resume=resume, progress=work.progress, stop=work.stop
        )
    found = StudyFiles.of(study)
    found.summary.update(models=potential.files, model_sha256=sha256_of(model_file(model)))
    give(folder=folder, **found.summary)
    _print(study, found.rows(), found.remark, title)
    found.write(folder)
    picture = save_figure(stability_figure(found, title=title), folder / "stability.png")
    typer.echo(f"Wrote {SUMMARY}, {picture.name}, {SERIES}, {CURVES} to {folder}")
    if study.interrupted:
        work.leave(f"{study.simulated:g} ps are saved in {folder}")


def _print(study: Study, rows: Sequence[Sequence[str]], remark: str, title: str) -> None:
    from denskit.simulation.stability.folder import HEADER

    console = Console(soft_wrap=True)
    show_table(HEADER, rows, console, title=title)
    console.print(
        f"simulated {study.simulated:g} of {study.settings.length:g} ps, {counted(study.settings.seeds, 'seed')}"
    )
    if study.conservation is not None and study.conservation.unstable:
        complain(f"without a thermostat {study.conservation.unstable} became unstable and are left out")
    if remark:
        console.print(f"warning: {remark}", markup=False, highlight=False)
    for failure in study.failures:
        complain(str(failure))
