"""``denskit predict``: energies and forces for the structures of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def predict(
    model: Annotated[Path, typer.Argument(help="Model file or run folder.", show_default=False)],
    file: Annotated[Path, typer.Argument(help="Structures: extxyz, traj, db, npz, ...", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The extxyz file to write.", show_default=False)],
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    batch_size: Annotated[int, typer.Option(help="Structures at a time.", min=1)] = 32,
) -> None:
    """Predict energies (eV), forces (eV/Å) and, if the model has it, stress (eV/Å^3); write them as extxyz.

    Labels that the file has are kept as REF_energy, REF_forces and REF_stress.

    Example:  denskit predict runs/mine new.extxyz -o labelled.extxyz
    """
    from denskit.training.evaluate import predict as predict_file

    count = predict_file(model, file, output, device=device, batch_size=batch_size)
    typer.echo(f"Wrote {count} structures to {output}")
