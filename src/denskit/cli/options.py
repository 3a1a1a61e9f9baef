"""Options that several verbs take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

ModelPath = Annotated[Path, typer.Argument(help="Run folder or model file.", metavar="RUN|MODEL", show_default=False)]
BatchSize = Annotated[int, typer.Option(help="Structures at a time; of large ones fewer.", min=1)]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Dtype = Annotated[Literal["float32", "float64"] | None, typer.Option(help="Default: the model's.")]
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
Committee = Annotated[
    list[Path] | None,
    typer.Option(help="A further model, repeatable: the mean of all of them is taken.", metavar="RUN|MODEL"),
]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="The same bits at every call on a GPU.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output file.")]
Processes = Annotated[
    int, typer.Option(help="Processes on this machine; structures and cores are divided among them.", min=1)
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the work in the folder.")]
Skin = Annotated[float, typer.Option(help="Å, of the neighbour list.")]


def refuse(*rules: tuple[object, str]) -> None:
    """Raise ValueError with the text of the first rule whose condition holds: options that would be ignored."""
    for wrong, why in rules:
        if wrong:
            raise ValueError(why)
