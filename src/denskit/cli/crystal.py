"""``denskit crystal``: equation of state, elastic constants and phonons of crystals."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column

from denskit.cli.opening import open_potential, open_structures, references_of
from denskit.cli.options import Device, HowRead, Kernels, Resume, refuse
from denskit.cli.output import complain, give, show_table, table_console
from denskit.cli.sets import origin_of_file, reading_settings
from denskit.cli.stopping import stoppable


def crystal(
    model: Annotated[Path, typer.Argument(help="Model file or run folder; with stress.", show_default=False)],
    file: Annotated[Path, typer.Argument(help="Crystals: cif, POSCAR, extxyz, traj, db, ...", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.", show_default=False)],
    how: HowRead = None,
    phonons: Annotated[bool, typer.Option("--phonons", help="Phonons too, by phonopy (extra crystals).")] = False,
    conductivity: Annotated[
        bool, typer.Option("--conductivity", help="Thermal conductivity too, by phono3py (extra conductivity).")
    ] = False,
    reference: Annotated[
        Path | None, typer.Option(help="Conductivities to compare with: a folder, or a file of Matbench Discovery.")
    ] = None,
    mesh: Annotated[
        float | None,
        typer.Option(help="Å: length of the sampling of q for --conductivity; default: 40, or as --reference."),
    ] = None,
    supercell: Annotated[
        float | None,
        typer.Option(
            help="Å: smallest height of the supercell for --phonons, --conductivity; default: 12, or as --reference."
        ),
    ] = None,
    fmax: Annotated[float, typer.Option(help="eV/Å: largest force in a relaxed crystal.")] = 1e-3,
    strain: Annotated[float, typer.Option(help="Strain of the elastic constants.")] = 0.005,
    volumes: Annotated[int, typer.Option(help="Volumes of the equation of state.", min=5)] = 9,
    resume: Resume = False,
    device: Device = "auto",
    dtype: Annotated[Literal["float32", "float64"], typer.Option(help="Of the model.")] = "float64",
    kernels: Kernels = "auto",
) -> None:
    """Relax crystals, and measure their equation of state, elastic constants, phonons and thermal conductivity.

    Writes crystals.jsonl (one line a crystal, units in the names), crystals.png and, with --phonons, files for phonopy,
    with --conductivity the conductivity of each mode. Ctrl-C stops after a crystal; --resume continues.

    Examples:

      denskit crystal runs/mine Cu.cif -o copper

      denskit crystal runs/mine crystals.extxyz --phonons -o crystals

      denskit crystal runs/mine Si.cif --conductivity --reference dft -o silicon
    """
    from denskit.analysis.crystal_plots import crystal_figure
    from denskit.analysis.crystal_results import is_measured
    from denskit.analysis.plots import save_figure
    from denskit.data.writing import Originals
    from denskit.simulation.crystals import CrystalSettings
    from denskit.simulation.crystals.folder import measure_into

    refuse(
        (reference and not conductivity, "--reference belongs to --conductivity; without it it would be ignored"),
        (mesh is not None and not conductivity, "--mesh belongs to --conductivity; without it it would be ignored"),
        (
            supercell is not None and not (phonons or conductivity),
            "--supercell belongs to --phonons and --conductivity; without one of them it would be ignored",
        ),
    )
    given = {name: value for name, value in (("mesh", mesh), ("supercell", supercell)) if value is not None}
    settings = CrystalSettings(fmax=fmax, strain=strain, volumes=volumes, **given)
    potential = open_potential([model], device, dtype, stress=True, kernels=kernels)
    source = open_structures(model, file, reading_settings(how or []))
    origin = {"models": potential.files, "model": potential.weights_sha256(), **origin_of_file(file), "dtype": dtype}
    known = nullcontext() if reference is None else references_of(reference, file, source)
    with stoppable(Console(stderr=True)) as work, known as references:
        found = measure_into(
            output, potential, source, settings, vibrations=phonons, heat=conductivity, reference=references,
            origin=origin, original=Originals(file, source), resume=resume,
            say=lambda text: typer.echo(text, err=True), stop=work.stop, progress=work.progress,
        )  # fmt: skip
    if found is None:
        work.leave(f"finished crystals are in {output}")
    give(folder=output, crystals=found)
    _print(found)
    if (figure := crystal_figure(found)) is not None:
        save_figure(figure, output / "crystals.png")
    typer.echo(f"Wrote crystals.jsonl{'' if figure is None else ' and crystals.png'} to {output}")
    if not any(is_measured(crystal) for crystal in found):
        complain("No crystal could be measured")
        raise typer.Exit(1)


def _print(found: list[dict[str, Any]]) -> None:
    from denskit.analysis.crystal_results import crystal_table, remarks

    header, rows = crystal_table(found)
    if rows:
        columns = [Column(name, overflow="fold") for name in header]
        show_table(columns, (map(escape, row) for row in rows), table_console())
    console = Console(soft_wrap=True, markup=False)
    for one in found:
        for text in remarks(one):
            if "error" in one and text.endswith(one["error"]):
                complain(text)
            else:
                console.print(text, highlight=False)
