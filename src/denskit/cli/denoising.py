"""``denskit evaluate --denoise``: the denoising diagnostic, its table and its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Column

from denskit.cli.output import give, show_table
from denskit.files import new_file, output_folder, write_json

if TYPE_CHECKING:
    from denskit.evaluation.denoising import Recovery

FILES = ("denoising.json", "denoising.png")
ENOUGH = 30  # corrupted atoms, for a hint


def show_denoising(run: Path, source: str | None, output: Path | None, *, force: bool, **settings: Any) -> None:
    """Measure how well a run recovers noise; print the table and write ``denoising.json`` and ``denoising.png``.

    Files go into ``output``, or into the run folder where the structures are the run's own (``source`` None).
    ``settings`` are those of :func:`denskit.evaluation.denoising.denoise`.
    """
    from denskit.analysis.denoising_plot import denoising_figure
    from denskit.analysis.plots import save_figure
    from denskit.evaluation.denoising import denoise, guessed_noise, own_noise

    if output is not None:
        for name in FILES:
            new_file(output_folder(output) / name, force=force)
    found = denoise(run, source, **settings)
    give(recovery=[asdict(cell) for cell in found])
    _print(found, f"{run}: noise error / error of predicting zero (1: nothing learnt)")
    own = [cell for cell in found if (cell.sigma, cell.corruption_ratio) == own_noise(run) and cell.with_forces]
    if own and own[0].atoms >= ENOUGH and (meaning := guessed_noise(own[0].without_forces)) is not None:
        typer.echo(f"hint: {meaning}")
    if output is None and source is not None:
        return
    folder = output or run
    write_json(folder / FILES[0], [asdict(cell) for cell in found])
    save_figure(denoising_figure(found, title=run.name), folder / FILES[1])
    typer.echo(f"Wrote {' and '.join(FILES)} to {folder}")


def _print(found: Sequence[Recovery], title: str) -> None:
    names = ("sigma (Å)", "corruption ratio", "atoms corrupted", "forces encoded", "without forces")
    rows = []
    for cell in found:
        informed = "-" if cell.with_forces is None else f"{cell.with_forces:.3f}"
        noise = (f"{cell.sigma:.4g}", f"{cell.corruption_ratio:.3g}", f"{cell.atoms}")
        rows.append((*noise, informed, f"{cell.without_forces:.3f}"))
    show_table([Column(name, justify="right") for name in names], rows, title=title)
