"""``denskit runs``: the runs in a folder, as a table; and their removal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column
from typer.core import TyperGroup

from denskit.cli.output import complain, give, show_table, table_console
from denskit.runtime.progress import counted

if TYPE_CHECKING:
    from denskit.training.overview import Overview

LIST = "list"


class _ListByDefault(TyperGroup):
    """``denskit runs FOLDER`` is ``denskit runs list FOLDER``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "--help"):
            args = [LIST, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_ListByDefault,
    help="""List run folders, or delete some. `denskit compare RUN ...` compares their errors.

Examples:

  denskit runs

  denskit runs experiments

  denskit runs delete runs/first runs/second
""",
)


@app.command(LIST)
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Folder to look into, with its subfolders.")] = Path("runs"),
) -> None:
    """Show the runs in a folder: model, task, data, how far they came, and their errors.

    Examples:

      denskit runs

      denskit runs experiments --json
    """
    from dataclasses import asdict

    from denskit.reading.budget import Unreadable
    from denskit.training.overview import overview_of, runs_below

    found = []
    for path in runs_below(folder):
        try:
            found.append(overview_of(path))
        except Unreadable as error:  # one bad folder must not hide the others
            complain(f"left out: {error}")
    give(runs=[asdict(run) for run in found])
    if found:
        _print(found)
    else:
        typer.echo(f"no runs in {folder}")


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(help="Run folders.", metavar="RUN ...", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Do not ask.")] = False,
) -> None:
    """Delete run folders, with their models and checkpoints. A run that trains is not touched, nor any other folder.

    Example:  denskit runs delete runs/first runs/second
    """
    from denskit.training.overview import delete_run, run_folder

    folders = [run_folder(name).path for name in names]  # all are looked at before one is deleted
    for folder in folders:
        files = [path for path in folder.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files) / 1e6
        if force or typer.confirm(f"Delete {folder} ({counted(len(files), 'file')}, {size:.1f} MB)?", err=True):
            delete_run(folder)
            typer.echo(f"Deleted {folder}")


def _print(runs: list[Overview]) -> None:
    import time

    def right(header: str) -> Column:
        return Column(header, justify="right", no_wrap=True)

    columns = (
        Column("run", overflow="fold"), "model", "task", "data", "state", right("steps"),
        right("forces\nvalidation"), right("energy\nan atom"), right("forces\ntest"), "last change",
    )  # fmt: skip
    rows = [
        (
            escape(str(run.path)), run.model, run.task, escape(run.data), run.state,
            f"{run.step}/{run.steps}" if run.state in ("running", "interrupted") else str(run.step),
            _forces(run.validation), _number(run.validation, "energy_mae_meV_per_atom"), _forces(run.test),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.changed)),
        )
        for run in runs
    ]  # fmt: skip
    caption = "forces in meV/Å, energies in meV per atom"
    show_table(columns, rows, table_console(), caption=caption, caption_justify="left")


def _forces(errors: Any) -> str:
    """Empty where all forces of the labels are zero, and tell nothing."""
    return _number(errors, "forces_mae_meV_per_A") if "forces_mae_relative_to_zero" in errors else ""


def _number(errors: Any, name: str) -> str:
    return f"{errors[name]:.3g}" if name in errors else ""
