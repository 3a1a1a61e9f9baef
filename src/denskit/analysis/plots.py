"""Plots of a run: learning curves and parity, as PNG files.

Everything is drawn with matplotlib's Agg canvas (no display needed) and labelled in meV, meV/Å and steps.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

Pair = tuple[np.ndarray, np.ndarray]  # reference, predicted

MEV = 1000.0  # meV per eV
UNITS = {"energy": "meV", "forces": "meV/Å"}
_COLUMNS = {"energy": "energy_mae_meV", "forces": "forces_mae_meV_per_A"}  # of metrics.csv, after train_ or valid_
DPI = 130
COLOURS = ("#3b6fb6", "#d1702b", "#3a8f5c", "#8a4fa3", "#b5483f", "#6b6b6b")


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """Columns of a run's ``metrics.csv`` as float64 arrays of one length; empty cells are NaN.

    Raises FileNotFoundError where there is none, ValueError where the file has no rows.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found; a run folder made by `denskit train` holds metrics.csv")
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    if not rows:
        raise ValueError(f"{path}: no rows yet; wait for the first logged step")
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}


def plot_parity(energy: Pair | None, forces: Pair | None, output: Path, *, title: str = "") -> Path:
    """Predicted against reference values, one point per structure (energy) and per force component.

    ``energy`` and ``forces`` are (reference, predicted) in eV and eV/Å, any shape; ``None`` leaves that panel out.
    Energies are shown relative to the mean of the reference.  Raises ValueError when both are ``None``.
    """
    if energy is None and forces is None:
        raise ValueError("nothing to draw: the structures have neither energies nor forces as labels")
    panels = [(name, pair) for name, pair in (("energy", energy), ("forces", forces)) if pair is not None]
    figure, row = row_of_axes(len(panels), width=4.4, height=4.2, title=title)
    for axes, (name, pair) in zip(row, panels, strict=True):
        _draw_parity(axes, name, {"": pair})
    return save_figure(figure, output)


def plot_learning_curves(runs: Mapping[str, Path], output: Path) -> Path:
    """Errors of several runs over steps, on logarithmic axes: energy (meV) and forces (meV/Å).

    Validation is drawn full, training (with corrupted structures as they were trained on) thin.  ``runs`` maps labels
    to run folders.  Raises FileNotFoundError and ValueError as :func:`read_metrics`.
    """
    figure, row = row_of_axes(len(UNITS), width=4.6)
    _draw_curves(row, runs)
    return save_figure(figure, output)


def plot_overview(runs: Mapping[str, Path], forces: Mapping[str, Pair], output: Path) -> Path:
    """Several runs on one page: learning curves of energy and forces, and the parity of forces (eV/Å) after training.

    ``runs`` and ``forces`` have the same labels.  Raises as :func:`read_metrics`.
    """
    figure, row = row_of_axes(3, width=4.4, height=4.0)
    _draw_curves(row[:2], runs)
    _draw_parity(row[2], "forces", forces)
    return save_figure(figure, output)


def row_of_axes(count: int, *, width: float, height: float = 3.8, title: str = "") -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` panels in a row, each ``width`` x ``height`` inches, in the style of all our plots."""
    figure = Figure(figsize=(count * width, height), dpi=DPI, layout="constrained")
    row = [figure.add_subplot(1, count, position) for position in range(1, count + 1)]
    for axes in row:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
    figure.suptitle(title, fontsize=11)
    return figure, row


def plain_ticks(axes: Axes) -> None:
    """Ticks at 1, 2 and 5 of a logarithmic y axis, as plain numbers."""
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def save_figure(figure: Figure, output: Path) -> Path:
    """Write a figure as PNG; returns its path."""
    output.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(str(output))
    return output


def _draw_curves(row: Sequence[Axes], runs: Mapping[str, Path]) -> None:
    curves = {label: read_metrics(folder / "metrics.csv") for label, folder in runs.items()}
    for axes, name in zip(row, UNITS, strict=True):
        for colour, (label, columns) in zip(cycle(COLOURS), curves.items(), strict=False):
            _draw_curve(axes, columns, f"train_{_COLUMNS[name]}", color=colour, linewidth=0.6, alpha=0.5)
            _draw_curve(axes, columns, f"valid_{_COLUMNS[name]}", color=colour, label=label, marker=".")
        axes.set(xlabel="training step", ylabel=f"{name} MAE ({UNITS[name]}; thin: training)", yscale="log")
        plain_ticks(axes)
        axes.legend(frameon=False, fontsize=9)


def _draw_curve(axes: Axes, columns: Mapping[str, np.ndarray], name: str, **style: Any) -> None:
    """The measured points of a column; an absent column leaves an empty line."""
    values = columns.get(name, np.full_like(columns["step"], np.nan))
    measured = np.isfinite(values)
    axes.plot(columns["step"][measured], values[measured], **style)


def _draw_parity(axes: Axes, name: str, pairs: Mapping[str, Pair]) -> None:
    unit = UNITS[name]
    for colour, (label, pair) in zip(cycle(COLOURS), pairs.items(), strict=False):
        zero = float(np.mean(pair[0])) if name == "energy" else 0.0
        reference, predicted = (MEV * (np.ravel(values) - zero) for values in pair)
        text = f"{label} MAE {np.mean(np.abs(predicted - reference)):.3g} {unit}".strip()
        axes.scatter(reference, predicted, s=5, alpha=0.35, linewidths=0, color=colour, label=text, rasterized=True)
    axes.axline((0, 0), slope=1, color="0.6", linewidth=0.9, zorder=1)
    axes.set(xlabel=f"reference {name} ({unit})", ylabel=f"predicted {name} ({unit})", aspect="equal")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.legend(frameon=False, fontsize=9, markerscale=3)
