"""Figures of a committee: its spread against its error."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from denskit.analysis.plots import COLOURS, MEV, row_of_axes

_BINS = 12


def calibration_figure(spread: np.ndarray, error: np.ndarray) -> Figure:
    """Error of the committee's mean force against its spread, both [n] in eV/Å, an atom each, as a cloud and in bins.

    In a bin both are root mean squares; on the line the spread is as large as the error.
    """
    figure, (axes,) = row_of_axes(1, width=5.2, height=4.2)
    kept = (spread > 0) & (error > 0)
    spread, error = MEV * spread[kept], MEV * error[kept]
    shown = slice(None, None, max(1, len(error) // 4000))
    axes.scatter(spread[shown], error[shown], s=3, alpha=0.15, linewidths=0, color="0.5", rasterized=True)
    groups = np.array_split(np.argsort(spread), min(_BINS, len(spread)))
    x, y = (np.array([np.sqrt(np.mean(values[group] ** 2)) for group in groups]) for values in (spread, error))
    axes.plot(x, y, color=COLOURS[0], marker="o", markersize=4, label="root mean square in bins of spread")
    axes.axline((x[0], x[0]), (x[-1], x[-1]), color="0.4", linewidth=0.9, linestyle="--", label="spread = error")
    axes.set(xlabel="spread of the committee (meV/Å)", ylabel="error of its mean (meV/Å)", xscale="log", yscale="log")
    axes.set_ylim(np.quantile(error, 0.002), error.max() * 1.3)
    axes.legend(frameon=False, fontsize=9)
    return figure
