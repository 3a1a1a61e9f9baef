"""``denskit plot``: the pictures of the report as PNG files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from denskit.cli.options import Device, Force
from denskit.cli.output import give
from denskit.cli.report import Folders


def plot(
    folders: Folders,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the PNG files.", show_default=False)],
    what: Annotated[
        list[str] | None,
        typer.Option(
            help="Of one run, repeatable; default all: curves, parity, errors, trends, structures, dens, stability."
        ),
    ] = None,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Write the pictures of `denskit report` as PNG files, for papers and slides.

    Examples:

      denskit plot runs/mine -o figures

      denskit plot runs/mine --what curves --what parity -o figures
    """
    from denskit.analysis.report import plot as write_plots

    written = write_plots(folders, output, what or (), device=device, force=force)
    give(files=written)
    if not written:
        chosen = f" of {', '.join(what)}" if what else ""
        raise ValueError(f"nothing to draw{chosen} in {', '.join(map(str, folders))}")
    typer.echo(f"Wrote {', '.join(path.name for path in written)} to {output}")
