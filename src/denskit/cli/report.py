"""``denskit report``: one HTML page for a run, a study, several runs, or a simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from denskit.cli.options import Device, Force
from denskit.cli.output import give

Folders = Annotated[
    list[Path],
    typer.Argument(
        help="Folders of runs, or one of a study, `md`, `relax`, `stability` or `crystal`.",
        metavar="RUN|STUDY ...",
        show_default=False,
    ),
]


def report(
    folders: Folders,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="HTML file; default: report.html in the folder.", show_default=False),
    ] = None,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Write one HTML page to read and to send: errors in words and pictures, structures in 3D, settings, cost.

    The page needs no network. Predictions for the test structures are kept in the run folder, so a second report is
    fast. Several runs give errors side by side and their calibration as a committee.

    Examples:

      denskit report runs/mine

      denskit report runs/study-demo

      denskit report runs/seed0 runs/seed1 runs/seed2 -o committee.html
    """
    from denskit.analysis.report import report as write_report

    file = write_report(folders, output, device=device, force=force)
    give(file=file)
    typer.echo(f"Wrote {file}")
