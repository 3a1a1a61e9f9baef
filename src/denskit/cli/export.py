"""``denskit export``: a model as one file for torch without Denskit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from denskit.cli.options import Dtype, Force, ModelPath
from denskit.cli.output import give


def export(
    model: ModelPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="The .pt2 file to write.", show_default=False)],
    device: Annotated[str, typer.Option(help="auto, cpu or cuda: where the program will run.")] = "cpu",
    dtype: Dtype = None,
    aot: Annotated[
        bool, typer.Option("--aot", help="Compile by AOTInductor for this processor: minutes, needs a C++ compiler.")
    ] = False,
    force: Force = False,
) -> None:
    """Write energy and forces as a torch.export program, which runs without Denskit on any number of atoms and edges.

    --aot compiles it for torch._inductor.aoti_load_package or C++.

    Examples:

      denskit export runs/mine -o mine.pt2

      denskit export runs/mine -o mine_compiled.pt2 --aot
    """
    from denskit.files import new_file
    from denskit.models.model_file import load_model
    from denskit.runtime.device import choose_device
    from denskit.simulation.exporting import export_model
    from denskit.training.run_folder import model_file

    weights = model_file(model)
    new_file(output, inputs=[weights], force=force)
    force_field = load_model(weights, choose_device(device), dtype)
    found = export_model(force_field, output, compiled=aot)
    give(output=output, compiled=aot, **found)
    typer.echo(
        f"Wrote {output}: {', '.join(found['outputs'])} of one structure, {found['weights']} on {found['device']}; "
        f"neighbours within {found['cutoff']:g} Å are an input{'; compiled' if aot else ''}"
    )
