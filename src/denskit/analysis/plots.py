"""Plots of a run: learning curves and parity, as PNG files.

Everything is drawn with matplotlib's Agg canvas (no display needed) and labelled in meV, meV/Å and steps.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

MEV = 1000.0  # meV per eV
COLOURS = ("#3b6fb6", "#d1702b", "#3a8f5c", "#8a4fa3", "#b5483f", "#6b6b6b")


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """Columns of a run's ``metrics.csv`` as float64 arrays of one length; cells that are empty become NaN.

    Raises FileNotFoundError where the run wrote none, ValueError where the file has no rows.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found; a run folder made by `denskit train` holds metrics.csv")
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    if not rows:
        raise ValueError(f"{path}: no rows yet; wait for the first logged step")
    return {name: np.array([_number(row[name]) for row in rows]) for name in rows[0]}


def _number(text: str | None) -> float:
    return float(text) if text else float("nan")


def _axes(figure: Figure, position: int, count: int) -> Axes:
    axes = figure.add_subplot(1, count, position)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    return axes


def _save(figure: Figure, output: Path) -> Path:
    output.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(str(output))
    return output


def plot_parity(
    energy: tuple[np.ndarray, np.ndarray] | None,
    forces: tuple[np.ndarray, np.ndarray] | None,
    output: Path,
    *,
    title: str = "",
) -> Path:
    """Predicted against reference values, one point per structure (energy) and per force component.

    ``energy`` and ``forces`` are (reference, predicted) in eV and eV/Å, any shape; ``None`` leaves that panel out.
    Energies are shown relative to the mean of the reference.  Raises ValueError when both are ``None``.
    """
    panels = []
    if energy is not None:
        mean = float(np.mean(energy[0]))
        panels.append(("energy", "meV", [(np.ravel(values) - mean) * MEV for values in energy]))
    if forces is not None:
        panels.append(("forces", "meV/Å", [np.ravel(values) * MEV for values in forces]))
    if not panels:
        raise ValueError("nothing to draw: the structures have neither energies nor forces as labels")
    figure = Figure(figsize=(4.4 * len(panels), 4.2), dpi=130, layout="constrained")
    for position, (name, unit, (reference, predicted)) in enumerate(panels, start=1):
        axes = _axes(figure, position, len(panels))
        limits = [min(reference.min(), predicted.min()), max(reference.max(), predicted.max())]
        axes.plot(limits, limits, color="0.6", linewidth=0.9, zorder=1)
        axes.scatter(reference, predicted, s=5, alpha=0.35, linewidths=0, color=COLOURS[0], zorder=2, rasterized=True)
        axes.set(xlabel=f"reference {name} ({unit})", ylabel=f"predicted {name} ({unit})", aspect="equal")
        axes.set_title(f"MAE {np.mean(np.abs(predicted - reference)):.3g} {unit}", fontsize=10)
    figure.suptitle(title, fontsize=11)
    return _save(figure, output)


def plot_learning_curves(runs: Mapping[str, Path], output: Path) -> Path:
    """Errors of several runs over steps, on logarithmic axes: energy (meV) and forces (meV/Å).

    Validation is drawn full, training (with corrupted structures left as they were trained on) thin.  ``runs`` maps
    labels to run folders.  Raises FileNotFoundError and ValueError as :func:`read_metrics`.
    """
    panels = {"energy MAE (meV)": "energy_mae_meV", "force MAE (meV/Å)": "forces_mae_meV_per_A"}
    curves = {label: read_metrics(folder / "metrics.csv") for label, folder in runs.items()}
    figure = Figure(figsize=(4.6 * len(panels), 3.8), dpi=130, layout="constrained")
    for position, (label, column) in enumerate(panels.items(), start=1):
        axes = _axes(figure, position, len(panels))
        for colour, (run, columns) in zip(cycle(COLOURS), curves.items(), strict=False):
            _curve(axes, columns, f"train_{column}", color=colour, linewidth=0.6, alpha=0.5)
            _curve(axes, columns, f"valid_{column}", color=colour, label=run, marker=".")
        axes.set(xlabel="training step", ylabel=f"validation {label}", yscale="log")
        axes.legend(frameon=False, fontsize=9)
    return _save(figure, output)


def _curve(axes: Axes, columns: Mapping[str, np.ndarray], name: str, **style: Any) -> None:
    """The measured points of a column; a column that the run did not write leaves an empty line."""
    values = columns.get(name, np.full_like(columns["step"], np.nan))
    measured = np.isfinite(values)
    axes.plot(columns["step"][measured], values[measured], **style)
