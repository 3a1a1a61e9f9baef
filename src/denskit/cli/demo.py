"""``denskit demo``: DeNS in a few minutes on shipped data, from nothing to one table."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from denskit.files import locked, write_json

VARIANTS = {"without DeNS": "energy_forces", "with DeNS": "dens"}  # label, task
NOTE = """* A diagnostic: the forces of the test structures are its input.
So short a training shows that DeNS is learnt, not that it helps: its gain comes late in long ones."""
LIMIT = 0.8  # largest ratio of an error to that of predicting zero
ROWS = {
    "energy MAE (meV)": ("energy_mae_meV", "{:.1f}"),
    "force MAE (meV/Å)": ("forces_mae_meV_per_A", "{:.1f}"),
    "force MAE / that of predicting zero": ("forces_mae_relative_to_zero", "{:.3f}"),
    "noise error / that of zero, forces encoded *": ("noise_error_relative_to_zero_with_test_forces", "{:.3f}"),
    "noise error / that of zero, not encoded": ("noise_error_relative_to_zero_without_forces", "{:.3f}"),
    "training time (s)": ("seconds", "{:.0f}"),
    "parameters": ("parameters", "{:,}"),
}


def demo(
    output: Annotated[Path, typer.Option(help="Folder of the two runs, plots and results.json.")] = Path("runs/demo"),
    steps: Annotated[int | None, typer.Option(help="Training steps of each; default: the preset's.", min=1)] = None,
) -> None:
    """Train a small model without and with DeNS on shipped data, judge both on the test split, print one table.

    Fails (exit code 1) where forces or encoded noise are not clearly better than predicting zero.

    Example:  denskit demo --output runs/demo
    """
    import torch

    from denskit.analysis.plots import plot_overview
    from denskit.analysis.predictions import predictions_of

    torch.set_num_threads(1)  # so small a network is faster on one
    folders = {label: output / label.replace(" ", "_") for label in VARIANTS}
    with locked(output):
        results = {label: _train_and_judge(VARIANTS[label], folder, steps) for label, folder in folders.items()}
    write_json(output / "results.json", results)
    found = {label: predictions_of(folder) for label, folder in folders.items()}
    forces = {label: pair for label in VARIANTS if (pair := found[label].forces) is not None}
    plot_overview(folders, forces, output / "overview.png")
    _print_table(results)
    typer.echo(f"{NOTE}\nPlots and numbers: {output}")
    wanted = [(label, "forces_mae_relative_to_zero") for label in VARIANTS]
    wanted.append(("with DeNS", "noise_error_relative_to_zero_with_test_forces"))
    failed = [f"{key} {label} is {results[label][key]:.2f}" for label, key in wanted if results[label][key] >= LIMIT]
    if failed:
        typer.echo(f"FAILED: {'; '.join(failed)} (wanted: below {LIMIT})", err=True)
        raise typer.Exit(1)


def _train_and_judge(task: str, folder: Path, steps: int | None) -> dict[str, Any]:
    from denskit.evaluation.evaluate import evaluate, noise_error
    from denskit.models.model_file import read_header
    from denskit.training.config import load_config
    from denskit.training.run_folder import model_file
    from denskit.training.trainer import train

    if (folder / "config.yaml").is_file():
        shutil.rmtree(folder)  # an earlier demonstration
    length = [] if steps is None else [f"training.max_steps={steps}"]
    start = time.perf_counter()
    run = train(load_config("demo", [f"task={task}", f"output={folder}", *length]))
    seconds = time.perf_counter() - start
    noise = noise_error(run) if task == "dens" else {}
    return {**evaluate(run), **noise, "seconds": seconds, "parameters": read_header(model_file(run))["parameters"]}


def _print_table(results: dict[str, dict[str, Any]]) -> None:
    table = Table("", *(Column(label, justify="right") for label in results), title="Shipped ethanol, test split")
    for name, (key, form) in ROWS.items():
        table.add_row(name, *(form.format(result[key]) if key in result else "-" for result in results.values()))
    Console().print(table)
