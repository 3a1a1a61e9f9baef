"""``denskit select``: frames to label next."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Column

from denskit.cli.options import Device, Force
from denskit.cli.output import give, show_table
from denskit.runtime.progress import counted, progress_bar

if TYPE_CHECKING:
    from denskit.active.selection import Selection

SHOWN = 15  # chosen frames in the table
_UNIT = "1: typical distance of two frames of one composition"


def select(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Models (runs or files; two or more are a committee; none: radial features), then the pool: a file or "
            "a folder of denskit md.",
            metavar="[RUN|MODEL ...] POOL",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write (extxyz).", show_default=False)],
    count: Annotated[int, typer.Option(help="Frames to choose, at most.", min=1, show_default=False)],
    by: Annotated[
        Literal["spread", "farthest", "distance"] | None,
        typer.Option(
            help="spread of the committee; farthest from known frames; distance of an atom from training atoms; "
            "default: spread with a committee, else farthest.",
            show_default=False,
        ),
    ] = None,
    train: Annotated[
        Path | None, typer.Option(help="Training frames; default: those of the first run.", show_default=False)
    ] = None,
    duplicate: Annotated[
        float,
        typer.Option(
            help="Leave out frames nearer to a known one; 1: typical distance of two of one composition.", min=0
        ),
    ] = 0.1,
    most_spread: Annotated[
        float | None, typer.Option(help="eV/Å: leave out frames with more spread, as exploded.", min=0)
    ] = None,
    device: Device = "auto",
    batch_size: Annotated[int, typer.Option(help="Frames at a time; of large ones fewer.", min=1)] = 32,
    force: Force = False,
) -> None:
    """Choose frames worth labelling, from a simulation or any pool; duplicates are left out.

    Features are those of the last layer of the first model. All fields of the frames are kept; selection_score,
    selection_by and selection_frame are added.

    Examples:

      denskit select runs/a runs/b runs/c md/uncertain.extxyz --count 20 -o chosen.extxyz

      denskit select runs/a pool.extxyz --count 50 --by distance -o chosen.extxyz

      denskit select pool.extxyz --count 200 -o diverse.extxyz
    """
    from denskit.active.selection import select as choose
    from denskit.active.selection import write_selection
    from denskit.files import new_frames_file

    *models, pool = paths
    new_frames_file(output, inputs=[pool], force=force)
    with progress_bar(Console()) as progress:
        selection = choose(
            models, pool, count=count, by=by, train=train, duplicate=duplicate, most_spread=most_spread, device=device,
            batch_size=batch_size, progress=progress,
        )  # fmt: skip
    if not selection.chosen:
        raise ValueError("\n".join([f"{pool}: no frame is left to choose", *_fates(selection)]))
    write_selection(selection, pool, output, force=force)
    _show(selection, count)
    give(**asdict(selection), output=output)
    typer.echo(f"Wrote {counted(len(selection.chosen), 'frame')}, best first, to {output}")
    labelled = output.with_name(f"{output.stem}_labelled.extxyz")
    method = "--with MODULE:FUNCTION (the method of the training; GFN2-xTB: --with xtb)"
    typer.echo(f"Next:  denskit label {shlex.quote(str(output))} -o {shlex.quote(str(labelled))} {method}")


def _show(selection: Selection, count: int) -> None:
    from denskit.active.selection import MEANING

    found = zip(selection.chosen, selection.scores, selection.nearest, strict=True)
    rows = [
        (str(rank), str(frame), f"{score:.4g}", f"{nearest:.3g}" if math.isfinite(nearest) else "")
        for rank, (frame, score, nearest) in enumerate(found, start=1)
    ]
    show_table([Column(name, justify="right") for name in ("chosen", "frame", "score", "distance")], rows[:SHOWN])
    typer.echo(f"score: {MEANING[selection.by]}")
    typer.echo(f"distance: from the nearest training frame or frame chosen before; {_UNIT}")
    left = len(selection.chosen) - SHOWN
    if left > 0:
        typer.echo(f"... and {left} more, down to a score of {selection.scores[-1]:.4g}")
    for line in _fates(selection):
        typer.echo(line)
    if len(selection.chosen) < count:
        others = selection.pool > len(selection.chosen)
        why = "the other frames are left out for the reasons above" if others else "the pool holds no more"
        typer.echo(f"{count} were asked for: {why}")


def _fates(selection: Selection) -> list[str]:
    """The frames looked at, and those left out, with the reasons."""
    near = f"nearer than {selection.threshold:g} ({_UNIT})"
    named = (
        ("cannot be evaluated", selection.broken),
        ("have flown apart: an atom sees no other, as in no training frame", selection.alone),
        ("have flown apart: molecules in more parts than training frames of their formula", selection.torn),
        ("spread by more than is allowed", selection.exploded),
    )
    fates = {
        f"{why} (frames {', '.join(map(str, frames[:5]))}{', ...' if len(frames) > 5 else ''})": len(frames)
        for why, frames in named
    }
    fates[f"nearly equal to a training frame: {near}"] = len(selection.known)
    fates[f"nearly equal to a chosen frame: {near}"] = selection.alike
    training = (
        f"compared with {counted(selection.training, 'training frame')}" if selection.training else "no training frames"
    )
    return [
        f"{counted(selection.pool, 'frame')} in the pool, {training}",
        *(f"{n} {why}" for why, n in fates.items() if n),
    ]
