"""``denskit compare``: runs that are there, side by side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from denskit.cli.options import Force
from denskit.cli.output import give

FILES = ("table.md", "table.tex", "means.csv", "table.csv", "learning_curves.png")


def compare(
    runs: Annotated[list[str], typer.Argument(help="Run folders, or NAME=FOLDER.", metavar="[NAME=]RUN ...")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for table.md, .tex, .csv, means.csv and learning_curves.png."),
    ] = None,
    force: Force = False,
) -> None:
    """Compare runs in one table. Runs that differ only in the seed are averaged, and paired by seed with the first.

    Errors are those of `denskit evaluate` (test.json) where all runs have them, else of the last validation.

    Examples:

      denskit compare runs/plain runs/dens

      denskit compare plain=runs/a0 plain=runs/a1 dens=runs/b0 dens=runs/b1 -o runs/compared
    """
    from denskit.analysis.study_plots import plot_study_results
    from denskit.evaluation.study.comparison import compare_runs
    from denskit.evaluation.study.tables import as_rich, write_tables
    from denskit.files import new_file, output_folder

    if output is not None:
        for name in FILES:
            new_file(output_folder(output) / name, force=force)
    results = compare_runs(runs)
    give(title=results.title, warning=results.warning or None, runs=[asdict(run) for run in results.found])
    console = Console()
    console.print(*as_rich(results, console.width), sep="\n")
    if output is not None:
        written = [*write_tables(results, output), *plot_study_results(results, output)]
        typer.echo(f"Wrote {', '.join(path.name for path in written)} to {output}")
