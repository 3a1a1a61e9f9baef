"""``denskit models``: the trained models that ship with Denskit."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column

from denskit.cli.output import give, show_table

app = typer.Typer(invoke_without_command=True)
ENERGY, FORCES = "energy_mae_meV", "forces_mae_meV_per_A"


@app.callback()
def models(context: typer.Context) -> None:
    """List the trained models that ship with Denskit, or show the card of one.

    Their names are taken wherever a run or a model file is, and by training.init_from.

    Examples:

      denskit models

      denskit models show ethanol-xtb

      denskit md zoo:ethanol-xtb ethanol.xyz --time 1
    """
    from denskit.zoo import PREFIX, cards

    if context.invoked_subcommand is not None:
        return
    rows = [
        (f"{PREFIX}{card.name}", card.purpose, f"{card.errors[ENERGY]:.1f}", f"{card.errors[FORCES]:.1f}")
        for card in cards().values()
    ]
    give(models=[asdict(card) for card in cards().values()])
    show_table(("model", "purpose", "energy (meV)", "forces (meV/Å)"), rows)
    typer.echo("Mean absolute errors on frames that training did not see.")
    typer.echo("Details:  denskit models show NAME        Use:  denskit evaluate zoo:NAME mine.extxyz")


@app.command()
def show(name: Annotated[str, typer.Argument(help="Model, such as ethanol-xtb.", show_default=False)]) -> None:
    """Print the card of a model: data, split, errors, licence, command.

    Example:  denskit models show ethanol-xtb
    """
    from denskit.zoo import PREFIX, card_of, file_of

    card = card_of(name)
    give(**asdict(card))
    rows = {
        "purpose": card.purpose,
        "labels": card.method,
        "data": card.data,
        "licence": card.licence,
        "split": ", ".join(f"{count:,} {part}" for part, count in card.split.items()),
        "errors on": card.test,
        **{quantity: f"{value:.4g}" for quantity, value in card.errors.items()},
        "training": f"{card.steps:,} steps",
        "command": card.command,
        "note": card.note,
        "commit": card.commit,
        "versions": ", ".join(f"{package} {version}" for package, version in card.versions.items()),
        "parameters": f"{card.parameters:,}",
        "file": str(file_of(f"{PREFIX}{card.name}")),
        "sha256": card.sha256,
    }
    console, rows = Console(), {field: value for field, value in rows.items() if value}
    if not console.is_terminal:  # a line each where another program reads
        typer.echo("\n".join(f"{field}: {value}" for field, value in {"model": f"{PREFIX}{card.name}", **rows}.items()))
        return
    columns = ("", Column("", overflow="fold"))
    show_table(columns, rows.items(), console, title=f"{PREFIX}{card.name}", show_header=False)
