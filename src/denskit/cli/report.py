"""``denskit report``: one HTML page for a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="Run folder.", show_default=False)],
) -> None:
    """Write report.html into a run folder: settings, errors, curves, in one file without links.

    Example:  denskit report runs/mine
    """
    from denskit.analysis.report import report_run

    typer.echo(f"Wrote {report_run(run)}")
