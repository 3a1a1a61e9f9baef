"""``denskit presets``: the run configurations that ship with Denskit."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

app = typer.Typer(invoke_without_command=True)


@app.callback()
def presets(context: typer.Context) -> None:
    """List the shipped presets, or show one.

    Examples:

      denskit presets

      denskit presets show md17/equiformer_l2_dens
    """
    from denskit.presets import preset_description, preset_names

    if context.invoked_subcommand is not None:
        return
    table = Table(Column("preset", no_wrap=True), "what it is for")
    for name in preset_names():
        table.add_row(name, preset_description(name))
    Console().print(table)
    typer.echo("Show one:  denskit presets show NAME        Train one:  denskit train NAME key=value ...")


@app.command()
def show(name: Annotated[str, typer.Argument(help="Preset, such as md17/equiformer_l2_dens.")]) -> None:
    """Print a preset's YAML: redirect it to a file to make your own configuration.

    Example:  denskit presets show equiformer > mine.yaml
    """
    from denskit.presets import preset_text

    typer.echo(preset_text(name), nl=False)
