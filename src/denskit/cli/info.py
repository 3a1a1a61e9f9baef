"""``denskit info``: the contents of a file of structures, with checks, or of a model file."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from denskit.cli.output import give, printable, show_table
from denskit.cli.sets import with_settings

if TYPE_CHECKING:
    from denskit.data.inspection import Inspection


def info(
    given: Annotated[
        list[str],
        typer.Argument(
            help="Structures, model file or run folder; data.KEY=VALUE: how structures are read.",
            metavar="FILE|RUN|MODEL [data.KEY=VALUE ...]",
            show_default=False,
        ),
    ],
) -> None:
    """Show the contents of a file, and its problems.

    Structures: elements, labels, ranges, then a line for each problem. Energies are compared with forces and stress
    between similar structures, which shows wrong signs and units. Exit code 1: there are problems.

    Model or run: architecture, units, cutoff, elements, references, training.

    Examples:

      denskit info mine.extxyz

      denskit info mine.extxyz data.energy_key=dft_energy data.units=kcal/mol

      denskit info runs/mine
    """  # fmt: skip
    files, settings = with_settings(given)
    if len(files) != 1:
        raise ValueError(f"one file, run folder or model file is wanted, found {' '.join(files) or 'none'}")
    path = Path(files[0])
    if path.suffix == ".safetensors" or files[0].startswith("zoo:") or (path / "config.yaml").is_file():
        if settings:
            raise ValueError(f"{path} is a model; {settings[0]} belongs to structures")
        _show_model(path)
    else:
        _show_structures(path, settings)


def _show_model(path: Path) -> None:
    from denskit.models.model_file import read_header
    from denskit.settings import dotted
    from denskit.training.run_folder import model_file

    header = read_header(model_file(path))
    give(**header)
    rows = ((name, escape(str(value))) for name, value in dotted(header))
    show_table(("field", "value"), rows, title=escape(str(path)))


def _show_structures(path: Path, settings: list[str]) -> None:
    from denskit.data.inspection import inspect_file
    from denskit.training.load_config import whole_file_config

    config = whole_file_config(settings, "info")
    if "filter" in config.model_fields_set:
        raise ValueError("denskit info looks at all structures; data.filter acts in denskit train and data convert")
    found = inspect_file(path, config)
    give(**found.to_dict())
    _print(found)
    if found.problems:
        raise typer.Exit(1)


def _print(found: Inspection) -> None:
    console = Console()
    show_table(("quantity", "value"), _rows(found).items(), console, title=escape(found.file), title_justify="left")
    lines = [*(f"note: {note.removeprefix('note: ')}" for note in found.notes), *map(str, found.findings)]
    lines += ["frames are counted from 0"] * any(finding.frames for finding in found.findings)
    for line in map(printable, lines):
        if console.is_terminal:  # wrapped between words; one line each where another program reads
            line = fill(line, console.width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        style = "bold yellow" if line.startswith("problem") else None
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
    if not found.problems and not (found.labels["energy"] or found.labels["forces"]):
        console.print("nothing to train on: no energy and no forces; no problem of the structures found")
    elif not found.problems:
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
