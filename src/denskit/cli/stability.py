"""``denskit stability``: stability and h(r) of simulations, by the published protocol for MD17."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from denskit.cli.opening import open_potential
from denskit.cli.options import Device, Kernels, Processes, refuse
from denskit.cli.output import give
from denskit.cli.stopping import stoppable
from denskit.files import atomic_write, write_json

if TYPE_CHECKING:
    from denskit.data.base import Source
    from denskit.simulation.stability.protocol import StudySettings
    from denskit.simulation.stability.results import Study

FILES = ("stability.json", "stability.png", "series.csv", "h_of_r.csv")
# measure of the summary: name, format, factor
ROWS: dict[str, tuple[str, str, float]] = {
    "stability_ps": ("stability (ps)", "{:.4g}", 1.0),
    "h_of_r_error": ("h(r) error", "{:.3f}", 1.0),
    "h_of_r_wasserstein_A": ("h(r) Wasserstein-1 (Å)", "{:.4f}", 1.0),
    "nve_drift_eV_per_atom_ps": ("NVE drift (meV/atom/ps)", "{:+.4f}", 1000.0),
    "nve_score": ("NVE score", "{:.4f}", 1.0),
}


def stability(
    model: Annotated[Path, typer.Argument(help="Run folder or model file.", metavar="RUN|MODEL", show_default=False)],
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
    resume: Annotated[bool, typer.Option("--resume", help="Continue the simulations in the folder.")] = False,
    device: Device = "auto",
    dtype: Annotated[Literal["float32", "float64"] | None, typer.Option(help="Default: the model's.")] = None,
    skin: Annotated[float, typer.Option(help="Å, of the neighbour list.")] = 0.5,
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
    from denskit.evaluation.evaluate import source_of
    from denskit.simulation.stability.protocol import StudySettings

    if output is None and not model.is_dir():
        raise ValueError(f"{model} is a model file: say with --output where the results go")
    refuse((not 0 < time < float("inf"), f"--time: {time:g}: wanted a number of ps above 0"))
    settings = StudySettings(
        length=time, seeds=replicas, seed=seed, temperature=temperature, timestep=timestep, nve=nve
    )
    reference = source_of(model, file, "test")
    title = f"simulations with {model}" + (f" by {file}" if file else "")
    made = {"device": device, "dtype": dtype, "skin": skin, "kernels": kernels, "processes": min(processes, replicas)}
    _simulate(model, reference, settings, output or model / "stability", title, resume=resume, **made)


def _simulate(
    model: Path,
    reference: Source,
    settings: StudySettings,
    folder: Path,
    title: str,
    *,
    resume: bool,
    **made: Any,
) -> None:
    """Run the study with its progress bar, print the table and write the files."""
    from denskit.simulation.stability.protocol import Reference
    from denskit.simulation.stability.study import run_study

    potential = open_potential([model], **made)
    truth = Reference.of(reference)
    with stoppable(Console()) as work:
        study = run_study(
            potential, truth, settings, folder=folder, resume=resume, progress=work.progress, stop=work.stop
        )
    give(folder=folder, **study.summary())
    _print(study, title)
    _write(study, folder, title)
    typer.echo(f"Wrote {', '.join(FILES)} to {folder}")
    if study.interrupted:
        work.leave(f"{study.simulated:g} ps are saved in {folder}")


def _print(study: Study, title: str) -> None:
    table = Table("measure", "mean", "spread", "of each simulation", title=title)
    summary = study.summary()
    for name, (label, form, factor) in ROWS.items():
        if name in summary:
            found = summary[name]
            mean = _cell(found["mean"], form, factor)
            deviation = _cell(found["std"], form.replace("+", ""), factor)
            table.add_row(label, mean, deviation, ", ".join(_cell(value, form, factor) for value in found["of"]))
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(f"simulated {study.simulated:g} of {study.settings.length:g} ps, {study.settings.seeds} seeds")
    if study.conservation is not None and study.conservation.unstable:
        console.print(f"without a thermostat {study.conservation.unstable} became unstable and are left out")
    for failure in study.failures:
        console.print(str(failure), markup=False, highlight=False)


def _cell(value: float | None, form: str, factor: float) -> str:
    """A number, or "-" where there is none."""
    return "-" if value is None else form.format(factor * value)


def _write(study: Study, folder: Path, title: str) -> None:
    from denskit.analysis.plots import save_figure
    from denskit.analysis.simulation_plots import stability_figure
    from denskit.simulation.distributions import EDGES

    write_json(folder / FILES[0], study.summary())
    save_figure(stability_figure(study, title=title), folder / FILES[1])
    records, seeds = study.series, range(study.settings.seeds)
    series = [f"{name}_{seed}" for name in ("temperature_K", "energy_eV") for seed in seeds]
    rows = zip(records.time, records.temperature, records.energy, strict=True)
    _write_csv(folder / FILES[2], ["time_ps", *series], [[time, *hot, *deep] for time, hot, deep in rows])
    curves = [study.reference.h_of_r(), *(records.histogram.h_of_r(seed) for seed in seeds)]
    names = ["r_A", "reference", *(f"simulation_{seed}" for seed in seeds)]
    _write_csv(folder / FILES[3], names, zip((EDGES[1:] + EDGES[:-1]) / 2, *curves, strict=True))


def _write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[float]]) -> None:
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
