"""What ``--stability`` of ``denskit md`` and ``denskit evaluate`` does: the simulation study, its table, its files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from denskit.files import atomic_write, new_file, write_json

if TYPE_CHECKING:
    import torch

    from denskit.data.base import Source
    from denskit.simulation.stability.protocol import StudySettings
    from denskit.simulation.stability.results import Study

FILES = ("stability.json", "stability.png", "series.csv", "h_of_r.csv")
# measure of the summary: what it is called, how it is shown, factor
ROWS: dict[str, tuple[str, str, float]] = {
    "stability_ps": ("stability (ps)", "{:.4g}", 1.0),
    "h_of_r_error": ("h(r) error", "{:.3f}", 1.0),
    "h_of_r_wasserstein_A": ("h(r) Wasserstein-1 (Å)", "{:.4f}", 1.0),
    "nve_drift_eV_per_atom_ps": ("NVE drift (meV/atom/ps)", "{:+.4f}", 1000.0),
    "nve_score": ("NVE score", "{:.4f}", 1.0),
}


def study_stability(
    models: Path | Sequence[Path],
    reference: Source,
    settings: StudySettings,
    folder: Path,
    *,
    device: str = "auto",
    dtype: torch.dtype | None = None,
    skin: float = 0.5,
    title: str = "",
) -> dict[str, Any]:
    """Run a study or go on with it; print its table, write its files into ``folder`` and return its summary.

    Files: ``stability.json``, ``stability.png``, ``h_of_r.csv``, ``series.csv``, and ``study.safetensors`` to go on
    from.  Raises ValueError where files of these names are there without the last.
    """
    from denskit.runtime.device import choose_device
    from denskit.runtime.interrupt import Interrupt
    from denskit.runtime.progress import progress_bar
    from denskit.simulation.potential import load_potential
    from denskit.simulation.stability.protocol import Reference
    from denskit.simulation.stability.study import STATE_FILE, run_study
    from denskit.training.run_folder import model_file

    paths = [models] if isinstance(models, Path) else list(models)
    potential = load_potential(
        [model_file(path) for path in paths], device=choose_device(device), dtype=dtype, skin=skin
    )
    truth = Reference.of(reference)
    if not (folder / STATE_FILE).exists():
        for name in FILES:
            new_file(folder / name)
    folder.mkdir(parents=True, exist_ok=True)
    with Interrupt(patient=False) as interrupt, progress_bar(Console(), settings.length) as bar:

        def show(what: str, done: float, total: float) -> None:
            bar(done, f"{what}, {done:.2f} ps", total)

        study = run_study(potential, truth, settings, folder=folder, progress=show, stop=lambda: interrupt.signal != 0)
    _print(study, title)
    _write(study, folder, title)
    if study.interrupted:
        Console().print(f"interrupted at {study.simulated:g} ps; the same command, --resume or not, goes on")
    return study.summary()


def study_file(context: typer.Context) -> None:
    """``denskit md --stability``: the study of a model by the frames of a file.

    Raises ValueError for an option on the command line that the protocol would ignore.
    """
    from denskit.data.config import DataConfig
    from denskit.data.loading import read_file
    from denskit.simulation.calculator import DTYPES
    from denskit.simulation.stability.protocol import StudySettings

    used = ("model", "file", "output", "time", "replicas", "seed", "resume", "device", "dtype", "skin", "stability")
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    ignored = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(given.difference(used)))
    if ignored:
        raise ValueError(f"--stability simulates by a fixed protocol (500 K, 0.5 fs, ...), it does not take {ignored}")
    options = context.params
    length = {"length": options["time"]} if "time" in given else {}
    seeds = {"seeds": options["replicas"]} if "replicas" in given else {}
    study_stability(
        options["model"],
        read_file(options["file"], DataConfig(missing="mask"))[0],
        StudySettings.model_validate({"seed": options["seed"], **length, **seeds}),
        options["output"],
        device=options["device"],
        dtype=options["dtype"] and DTYPES[options["dtype"]],
        skin=options["skin"],
        title=f"{options['model']} by {options['file']}",
    )


def stability_measures(
    model: Path,
    file: str | None,
    split: str,
    checkpoint: Literal["best", "last"] | None,
    length: float,
    folder: Path,
    device: str,
) -> dict[str, float]:
    """``denskit evaluate --stability``: the study's means (and the spread of the stability), named with their units."""
    from denskit.evaluation.evaluate import source_of
    from denskit.simulation.stability.protocol import StudySettings
    from denskit.training.run_folder import model_file

    found = study_stability(
        model_file(model, checkpoint),
        source_of(model, file, split),
        StudySettings(length=length),
        folder,
        device=device,
        title=f"simulations with {model}",
    )
    means = {name: found[name]["mean"] for name in ROWS if name in found}
    return means | {"stability_std_ps": found["stability_ps"]["std"], "simulated_ps": found["simulated_ps"]}


def _print(study: Study, title: str) -> None:
    table = Table("measure", "mean", "spread", "of each simulation", title=title)
    summary = study.summary()
    for name, (label, form, factor) in ROWS.items():
        if name in summary:
            found = summary[name]
            deviation = "-" if found["std"] is None else form.replace("+", "").format(factor * found["std"])
            each = ", ".join(form.format(factor * value) for value in found["of"])
            table.add_row(label, form.format(factor * found["mean"]), deviation, each)
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(f"simulated {study.simulated:g} of {study.settings.length:g} ps, {study.settings.seeds} seeds")
    for failure in study.failures:
        console.print(str(failure), markup=False, highlight=False)


def _write(study: Study, folder: Path, title: str) -> None:
    from denskit.analysis.simulation_plots import plot_study
    from denskit.simulation.distributions import EDGES

    write_json(folder / FILES[0], study.summary())
    plot_study(study, folder / FILES[1], title=title)
    records, seeds = study.records, range(study.settings.seeds)
    series = [f"{name}_{seed}" for name in ("temperature_K", "energy_eV") for seed in seeds]
    rows = zip(records.time, records.temperature, records.energy, strict=True)
    _write_csv(folder / FILES[2], ["time_ps", *series], [[time, *hot, *deep] for time, hot, deep in rows])
    curves = [study.reference.h_of_r(), *(records.histogram.h_of_r(seed) for seed in seeds)]
    names = ["r_A", "reference", *(f"simulation_{seed}" for seed in seeds)]
    _write_csv(folder / FILES[3], names, zip((EDGES[1:] + EDGES[:-1]) / 2, *curves, strict=True))


def _write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[float]]) -> None:
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
