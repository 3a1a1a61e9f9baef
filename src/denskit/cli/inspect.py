"""``denskit inspect``: what a model file says about itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table


def inspect(
    model: Annotated[Path, typer.Argument(help="Model file (.safetensors) or run folder.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole header as JSON.")] = False,
) -> None:
    """Print a model file's header: architecture, units, cutoff, elements, references, how it was trained.

    Example:  denskit inspect runs/mine
    """
    from denskit.models.model_file import read_header
    from denskit.training.run_folder import model_file

    header = read_header(model_file(model))
    if as_json:
        typer.echo(json.dumps(header, indent=2, default=str))
        return
    table = Table("field", "value", title=str(model))
    for name, value in _flat(header):
        table.add_row(name, value)
    Console().print(table)


def _flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict) and value:
        return [row for key, item in value.items() for row in _flat(item, f"{prefix}.{key}" if prefix else str(key))]
    return [(prefix, str(value))]
