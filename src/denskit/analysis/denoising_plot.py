"""Plot of the denoising diagnostic: noise error against sigma, with and without encoded forces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from denskit.analysis.plots import COLOURS, row_of_axes, save_figure
from denskit.evaluation.denoising import Recovery


def plot_denoising(found: Sequence[Recovery], output: Path, *, title: str = "") -> Path:
    """Draw the relative noise error against sigma, a colour for each corruption ratio; 1 is predicting zero."""
    figure, (axes,) = row_of_axes(1, width=5.6, height=4.0, title=title)
    for colour, ratio in zip(cycle(COLOURS), sorted({cell.corruption_ratio for cell in found}), strict=False):
        row = sorted((cell for cell in found if cell.corruption_ratio == ratio), key=lambda cell: cell.sigma)
        for name, style in (("with_forces", "-"), ("without_forces", "--")):
            points = [(cell.sigma, getattr(cell, name)) for cell in row if getattr(cell, name) is not None]
            if points:
                label = f"ratio {ratio:g}, {name.replace('_', ' ')}"
                axes.plot(*zip(*points, strict=True), style, color=colour, marker="o", markersize=4, label=label)
    axes.axhline(1.0, color="0.4", linewidth=0.9, linestyle=":", label="predicting zero")
    axes.set(xlabel="sigma (Å)", ylabel="noise error / error of predicting zero", xscale="log")
    axes.set_ylim(bottom=0.0)
    axes.xaxis.set_major_locator(FixedLocator(sorted({cell.sigma for cell in found})))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, output)
