"""``denskit label``: energies and forces by a reference method."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from denskit.cli.options import Force
from denskit.cli.output import complain, give
from denskit.cli.stopping import stoppable
from denskit.runtime.progress import counted

SHOWN = 10  # failures that are printed


def label(
    file: Annotated[Path, typer.Argument(help="Frames, any format that Denskit reads.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write (extxyz).", show_default=False)],
    method: Annotated[
        str,
        typer.Option(
            "--with", help="The method of your training labels: xtb (GFN2-xTB), or package.module:function, which "
            "returns a calculator of ASE.", metavar="xtb|MODULE:FUNCTION", show_default=False,
        ),
    ],
    processes: Annotated[int, typer.Option(help="Frames labelled at the same time.", min=1)] = 1,
    force: Force = False,
) -> None:  # fmt: skip
    """Label frames: energy, forces, and stress of crystals if the method has it. All fields are kept.

    Labels in the file become input_energy, input_forces, ... Total charges and spins of frames (fields charge,
    multiplicity, ...) are set in the calculator, if it has such parameters. Each new label is saved at once: after
    Ctrl-C or a kill the same command continues. Frames that the method fails on are named and left out; the same
    command tries them again.

    Examples:

      denskit label chosen.extxyz -o labelled.extxyz --with xtb

      denskit label chosen.extxyz -o labelled.extxyz --with mylab:vasp --processes 4
    """
    from denskit.active import label as compute

    console = Console(soft_wrap=True, markup=False)
    with stoppable(console) as work:
        done = compute(
            file, output, method=method, processes=processes, force=force, progress=work.progress, stop=work.stop,
        )  # fmt: skip
    give(**asdict(done))
    if done.taken:
        console.print(f"{counted(done.taken, 'label')} of an earlier call")
    if done.again:
        console.print(f"tried again: {counted(done.again, 'frame')} that failed in an earlier call")
    for frame, reason in list(done.failures.items())[:SHOWN]:
        complain(f"frame {frame} is left out: {reason}")
    if len(done.failures) > SHOWN:
        complain(f"left out as well: {counted(len(done.failures) - SHOWN, 'frame')}")
    if not done.finished:
        work.leave(f"saved: {counted(done.labels, 'label')}", command="the same command")
    again = "; the same command tries the others again" if done.failures else ""
    console.print(f"Wrote {counted(done.labels, 'labelled frame')} to {done.path}{again}")
