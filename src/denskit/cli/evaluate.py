"""``denskit evaluate``: errors of a run or a model on structures that training did not see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table


def evaluate(
    model: Annotated[Path, typer.Argument(help="Run folder or model file.", metavar="RUN|MODEL", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="data.test=FILE: other structures than the run's.", metavar="[data.test=FILE]"),
    ] = None,
    split: Annotated[Literal["train", "valid", "test"], typer.Option(help="Part of the run's own data.")] = "test",
    checkpoint: Annotated[
        Literal["best", "last"] | None, typer.Option(help="Of a run folder; default: what the run chose.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for SPLIT.json and parity.png; default: the run folder."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Judge a model: energy, force and stress errors, in a table and (for a run) in test.json and parity.png.

    Examples:

      denskit evaluate runs/mine

      denskit evaluate runs/mine/model.safetensors data.test=other.extxyz
    """
    from denskit.training.evaluate import evaluate as evaluate_model

    file = _test_file(overrides or [])
    if file is not None and split != "test":
        raise ValueError(f"--split {split} is part of the run's data; with data.test={file} it would be ignored")
    result = evaluate_model(model, file, split=split, checkpoint=checkpoint, device=device)
    table = Table("quantity", "error", title=f"{model} on {file or f'its {split} split'}")
    for name, value in result.items():
        table.add_row(name, f"{value:.4g}")
    Console().print(table)
    if output is None and (file is not None or not model.is_dir()):
        return
    folder = output or model
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{split}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if split == "test":
        from denskit.analysis.plots import plot_parity
        from denskit.analysis.predictions import predictions_of

        found = predictions_of(model, file, checkpoint=checkpoint, device=device)
        plot_parity(found.energy, found.forces, folder / "parity.png", title=f"{model.name}, test structures")
    typer.echo(f"Wrote {split}.json{' and parity.png' if split == 'test' else ''} to {folder}")


def _test_file(overrides: list[str]) -> str | None:
    for override in overrides:
        if not override.startswith("data.test="):
            raise ValueError(f"evaluate takes data.test=FILE, not {override!r}; the rest comes from the run")
    return overrides[-1].removeprefix("data.test=") if overrides else None
