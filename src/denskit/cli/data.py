"""``denskit data``: download, convert and generate data."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from denskit.cli.convert import convert, verify
from denskit.cli.options import Force
from denskit.cli.output import give

app = typer.Typer(help="Download, convert and generate data.", no_args_is_help=True)
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
    give(path=path)
    typer.echo(f"use it with data.name={name.value} data.molecule={molecule}, or data.path={path}")


@app.command()
def generate(
    molecule: Annotated[str, typer.Argument(help="ethanol, a G2 name (CH3CONH2) or a file.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .npz or .extxyz.", show_default=False)],
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
    from denskit.files import new_file, new_frames_file
    from denskit.runtime.progress import counted

    (new_file if output.suffix == ".npz" else new_frames_file)(output, inputs=[molecule], force=force)
    trajectory = generation.generate(
        molecule, frames=frames, temperature=temperature, every=every, timestep=timestep,
        equilibration=equilibration, seed=seed,
    )  # fmt: skip
    generation.write(trajectory, output, name=molecule)
    made = len(trajectory.energies)
    give(output=output, frames=made, recipe=trajectory.recipe)
    typer.echo(f"{output}: {counted(made, 'frame')}. {trajectory.recipe}")
    if made < frames:
        typer.echo(f"stopped after {made} of {frames} frames, which are written", err=True)
        raise typer.Exit(130)
