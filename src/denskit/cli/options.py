"""Options that several verbs take."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
HowRead = Annotated[
    list[str] | None,
    typer.Argument(
        help="How the file is read, where not as in training: data.energy_key=dft_energy, data.units=kcal/mol, ...",
        metavar="[data.KEY=VALUE ...]",
        show_default=False,
    ),
]
Kernels = Annotated[
    Literal["auto", "plain", "fused"],
    typer.Option(help="Edge operations of Equiformer: plain PyTorch, fused kernels, or auto: fused on CPUs."),
]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="The same bits at every call on a GPU.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output file.")]
Processes = Annotated[
    int, typer.Option(help="Processes on this machine that share the structures and its cores.", min=1)
]
