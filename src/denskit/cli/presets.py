"""``denskit presets``: the run configurations that ship with Denskit, and the settings of runs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from denskit.cli.output import give, show_table

app = typer.Typer(invoke_without_command=True)


@app.callback()
def presets(context: typer.Context) -> None:
    """List the shipped presets, show one, or describe all settings.

    Examples:

      denskit presets

      denskit presets show md17/equiformer_l2_dens

      denskit presets settings
    """
    from denskit.presets import preset_description, preset_names

    if context.invoked_subcommand is not None:
        return
    purposes = {name: preset_description(name) for name in preset_names()}
    give(presets=purposes)
    show_table((Column("preset", no_wrap=True), "purpose"), purposes.items())
    typer.echo("Show one:  denskit presets show NAME        Train one:  denskit train NAME key=value ...")


@app.command()
def show(name: Annotated[str, typer.Argument(help="Preset, such as md17/equiformer_l2_dens.")]) -> None:
    """Print a preset's YAML: redirect it to a file to make your own configuration.

    Example:  denskit presets show equiformer > mine.yaml
    """
    from denskit.presets import preset_text

    give(name=name, text=preset_text(name))
    typer.echo(preset_text(name), nl=False)


@app.command()
def settings(
    pattern: Annotated[
        str, typer.Argument(help="Part of a key, such as cutoff or training.; or a section, task=dens; default: all.")
    ] = "",
) -> None:
    """Describe the settings of a run: key, default, meaning.

    Examples:

      denskit presets settings cutoff

      denskit presets settings training.
    """
    from denskit.settings import fields_of
    from denskit.training.load_config import settings_classes

    found: dict[str, dict[str, str]] = {}
    for title, cls in settings_classes().items():
        table = Table(Column("setting", overflow="fold"), Column("default", overflow="fold"), "meaning", title=title)
        for key, field in fields_of(cls, "" if title == "run" else f"{title.partition('=')[0]}."):
            nested = title == "run" and "." in key  # listed under its own section
            if not nested and (pattern in key or pattern in (title, title.replace("=", "."))) and field.description:
                default = "" if field.is_required() else str(field.get_default(call_default_factory=True))
                meaning = " ".join(field.description.split())
                table.add_row(key, default, meaning)
                found[f"{title}: {key}" if "=" in title else key] = {"default": default, "meaning": meaning}
        if table.row_count:
            Console().print(table)
    if not found:
        raise ValueError(f"no setting has {pattern!r} in its key; denskit presets settings lists all")
    give(settings=found)
