"""Figures of DeNS: its terms over the training, and noise error against sigma with and without encoded forces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from denskit.analysis.plots import (
    COLOURS,
    COLUMNS,
    draw_column,
    legends,
    log_errors,
    row_of_axes,
    series_style,
    whole_ticks,
)
from denskit.evaluation.denoising import Recovery


def denoising_figure(found: Sequence[Recovery], *, title: str = "") -> Figure:
    """Relative noise error against sigma, a colour for each corruption ratio; 1 is predicting zero."""
    figure, (axes,) = row_of_axes(1, width=5.6, height=4.0, title=title)
    for place, ratio in enumerate(sorted({cell.corruption_ratio for cell in found})):
        style = series_style(place, points=True)
        row = sorted((cell for cell in found if cell.corruption_ratio == ratio), key=lambda cell: cell.sigma)
        for name, look in (
            ("with_forces", {"linestyle": "-"}),
            ("without_forces", {"linestyle": "--", "fillstyle": "none"}),
        ):
            points = [(cell.sigma, getattr(cell, name)) for cell in row if getattr(cell, name) is not None]
            if points:
                label = f"ratio {ratio:g}, {name.replace('_', ' ')}"
                axes.plot(*zip(*points, strict=True), **{**style, **look}, markersize=4, label=label)
    axes.axhline(1.0, color="0.4", linewidth=0.9, linestyle=":", label="predicting zero")
    axes.set(xlabel="sigma (Å)", ylabel="noise error / error of predicting zero", xscale="log")
    axes.set_ylim(bottom=0.0)
    axes.set_xlim(min(cell.sigma for cell in found) / 1.1, max(cell.sigma for cell in found) * 1.1)
    axes.xaxis.set_major_locator(FixedLocator(sorted({cell.sigma for cell in found})))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    legends(figure, [axes])
    return figure


def terms_figure(columns: Mapping[str, np.ndarray]) -> Figure:
    """Loss terms of a training with noise over steps; energy errors in training and validation."""
    figure, (terms, energy) = row_of_axes(2, width=4.8)
    for place, name in enumerate(("noise", "energy", "forces")):
        style = series_style(place, points=True)
        draw_column(terms, columns, f"train_loss_{name}", label=name, markersize=3.5, **style)
    terms.set(xlabel="training step", ylabel="loss term, without its weight")
    thin = {"color": COLOURS[1], "linewidth": 0.7, "alpha": 0.6}
    draw_column(
        energy, columns, f"train_{COLUMNS['energy']}", label="training, part of it corrupted", unit="meV", **thin
    )
    style = series_style(1, points=True)  # the energy's, as on the left
    draw_column(energy, columns, f"valid_{COLUMNS['energy']}", label="validation", unit="meV", markersize=3.5, **style)
    energy.set(xlabel="training step", ylabel="energy error, MAE (meV)")
    for axes in (terms, energy):
        log_errors(axes)
        whole_ticks(axes.xaxis)
    legends(figure, [terms])
    legends(figure, [energy])
    return figure
