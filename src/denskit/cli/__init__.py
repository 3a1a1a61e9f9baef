"""The ``denskit`` program: one file a verb, assembled here.

Nothing heavy is imported at the top of these files, so that ``denskit --help`` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from denskit import __version__
from denskit.cli.bench import bench
from denskit.cli.compare import compare
from denskit.cli.crystal import crystal
from denskit.cli.data import app as data_app
from denskit.cli.demo import demo
from denskit.cli.doctor import doctor
from denskit.cli.errors import Program
from denskit.cli.evaluate import evaluate
from denskit.cli.export import export
from denskit.cli.import_ import import_
from denskit.cli.info import info
from denskit.cli.label import label
from denskit.cli.lammps import lammps
from denskit.cli.md import md
from denskit.cli.models import app as models_app
from denskit.cli.output import OUTPUT
from denskit.cli.plot import plot
from denskit.cli.predict import predict
from denskit.cli.presets import app as presets_app
from denskit.cli.relax import relax
from denskit.cli.report import report
from denskit.cli.runs import app as runs_app
from denskit.cli.select import select
from denskit.cli.stability import stability
from denskit.cli.study import study
from denskit.cli.submission import app as submission_app
from denskit.cli.train import train
from denskit.runtime.allocator import keep_freed_memory
from denskit.runtime.children import end_with_parent
from denskit.runtime.openmp import wait_briefly

app = typer.Typer(
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="""Train, judge and use equivariant machine-learning force fields, with DeNS.

[bold]Examples[/bold]

  denskit demo

  denskit info mine.extxyz

  denskit train equiformer data.path=mine.extxyz training.budget="2 hours" output=runs/mine

  denskit evaluate runs/mine

  denskit predict runs/mine new.extxyz -o labelled.extxyz

[bold]denskit VERB --help[/bold] shows its arguments, with examples.
""",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"denskit {__version__}")
        raise typer.Exit


@app.callback()
def prepare(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Every verb works on large tensors that come and go, and prints warnings as one line."""
    end_with_parent()
    keep_freed_memory()
    wait_briefly()
    OUTPUT.show_warnings_plainly()


app.command()(info)
app.command()(train)
app.command()(evaluate)
app.command()(study)
app.command()(compare)
app.command()(predict)
app.command()(relax)
app.command("import")(import_)
app.command()(md)
app.command()(stability)
app.command()(crystal)
app.command()(select)
app.command()(label)
app.command()(export)
app.command()(lammps)
app.command()(report)
app.command()(plot)
app.command()(demo)
app.command()(doctor)
app.command()(bench)
app.add_typer(models_app, name="models")
app.add_typer(presets_app, name="presets")
app.add_typer(runs_app, name="runs")
app.add_typer(data_app, name="data")
app.add_typer(submission_app, name="submission")
