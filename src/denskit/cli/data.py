"""``denskit data``: fetch, inspect, convert and make data."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from denskit.cli.convert import convert, verify
from denskit.cli.options import Force

if TYPE_CHECKING:
    from denskit.data.inspection import Inspection

app = typer.Typer(help="Fetch, inspect, convert and make data.", no_args_is_help=True)
app.command()(convert)
app.command()(verify)


class Downloadable(StrEnum):
    """Datasets with a public address."""

    md17 = "md17"
    rmd17 = "rmd17"


@app.command()
def download(
    name: Annotated[Downloadable, typer.Argument(help="Dataset.", show_default=False)],
    molecule: Annotated[str, typer.Argument(help="Molecule, as aspirin.", show_default=False)],
) -> None:
    """Fetch a molecule of MD17 or rMD17 into $DENSKIT_CACHE (~/.cache/denskit), checked and whole or not at all.

    Example:  denskit data download md17 ethanol
    """
    from denskit.data.datasets import download as downloads

    path = downloads.download(name.value, molecule, say=typer.echo)
    typer.echo(f"use it with data.name={name.value} data.molecule={molecule}, or data.path={path}")


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="npz, extxyz, traj, ... file, or LMDB shards.", show_default=False)],
    energy_key: Annotated[str | None, typer.Option(help="Field that holds the energy.")] = None,
    forces_key: Annotated[str | None, typer.Option(help="Field that holds the forces.")] = None,
    stress_key: Annotated[str | None, typer.Option(help="Field that holds the stress or virial.")] = None,
    units: Annotated[str, typer.Option(help="auto, eV, kcal/mol, kJ/mol or Hartree.")] = "auto",
    fixed: Annotated[str, typer.Option(help="Fixed atoms of OC20 objects: file, tags or none.")] = "file",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what a file holds, and what looks wrong with it: a line for each problem and each note.

    Energies are compared with forces and stress between near frames, which shows wrong signs and units. Exit code 1:
    there are problems.

    Example:  denskit data inspect mine.extxyz
    """
    from denskit.data import DataConfig
    from denskit.data.inspection import inspect_file

    keys = {
        "energy_key": energy_key,
        "forces_key": forces_key,
        "stress_key": stress_key,
        "units": units,
        "fixed": fixed,
    }
    found = inspect_file(file, DataConfig.model_validate(keys))
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        _print(found)
    if found.problems:
        raise typer.Exit(1)


@app.command()
def generate(
    molecule: Annotated[str, typer.Argument(help="ethanol, a G2 name (CH3CONH2) or a file.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .npz or .extxyz.", show_default=False)],
    frames: Annotated[int, typer.Option(help="Frames to write.")] = 1000,
    temperature: Annotated[float, typer.Option(help="K.")] = 500.0,
    every: Annotated[float, typer.Option(help="fs between frames.")] = 10.0,
    timestep: Annotated[float, typer.Option(help="fs.")] = 0.5,
    equilibration: Annotated[float, typer.Option(help="fs before the first frame.")] = 1000.0,
    seed: Annotated[int, typer.Option(help="Of velocities and thermostat.")] = 0,
    force: Force = False,
) -> None:
    """Make a dataset by molecular dynamics with GFN2-xTB (needs: pip install 'denskit\\[xtb]').

    Example:  denskit data generate ethanol --frames 2000 -o ethanol.npz
    """
    from denskit.data.datasets import generate as generation
    from denskit.files import new_file

    new_file(out, inputs=[molecule], force=force)
    trajectory = generation.generate(
        molecule,
        frames=frames,
        temperature=temperature,
        every=every,
        timestep=timestep,
        equilibration=equilibration,
        seed=seed,
    )
    generation.write(trajectory, out, name=molecule)
    typer.echo(f"{out}: {frames} frames. {trajectory.recipe}")


def _print(found: Inspection) -> None:
    table = Table("what", "found", title=found.file, title_justify="left")
    for row in _rows(found).items():
        table.add_row(*row)
    console = Console()
    console.print(table)
    lines = [*(f"note: {note}" for note in found.notes), *map(str, found.findings)]
    lines += ["frames are counted from 0"] * any(finding.frames for finding in found.findings)
    for line in lines:
        if console.is_terminal:  # wrapped between words; one line each where another program reads
            line = fill(line, console.width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        style = "bold yellow" if line.startswith("problem") else None
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
    if not found.problems:
        console.print("no problem found", style="green")


def _rows(found: Inspection) -> dict[str, str]:
    def text(values: tuple[float, float, float] | float | None, unit: str, digits: int = 4) -> str:
        if values is None:
            return "-"
        numbers = (values,) if isinstance(values, float) else values
        return f"{' / '.join(f'{number:.{digits}f}' for number in numbers)} {unit}".strip()

    looked_at = "" if found.looked_at == found.frames else f" ({found.looked_at} looked at)"
    return {
        "frames": f"{found.frames}{looked_at}",
        "elements (atoms)": ", ".join(f"{symbol} {count}" for symbol, count in found.elements.items()),
        "compositions": str(found.compositions),
        "atoms a frame (min / mean / max)": text(found.atoms, "", 1),
        "periodic directions (frames)": ", ".join(f"{axes} {count}" for axes, count in found.periodicity.items()),
        "fixed atoms": str(found.fixed_atoms),
        "frames with a label": ", ".join(f"{label} {count}" for label, count in found.labels.items()),
        "energy (min / mean / max)": text(found.energy, "eV"),
        "energy an atom (min / mean / max)": text(found.energy_per_atom, "eV"),
        "energy, deviation in a composition": text(found.energy_std, "eV"),
        "forces, rms component": text(found.force_rms, "eV/Å"),
        "forces, largest norm": text(found.force_max, "eV/Å"),
        "stress, rms component": text(found.stress_rms, "eV/Å^3", 6),
        f"closest atoms (of {found.searched} frames)": text(found.closest, "Å"),
    }
