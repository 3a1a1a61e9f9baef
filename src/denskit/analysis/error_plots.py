"""Figures of errors: their distribution, and their dependence on another quantity or on a committee's spread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are used
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from denskit.analysis.plots import COLOURS, MEV, legends, plain_ticks, row_of_axes, series_style

_BINS = 12  # of a quantity that errors are averaged over
_FEW = 200  # points that are drawn larger


def histogram_figure(panels: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """Distributions of errors, one line a label, on a logarithmic axis.

    panels: "QUANTITY (UNIT)" of each panel -> label -> errors [n], above 0, in a thousand times that unit.
    """
    figure, row = row_of_axes(len(panels), width=4.6)
    for axes, (name, errors) in zip(row, panels.items(), strict=True):
        everything = MEV * np.concatenate(list(errors.values()))
        largest = everything.max()
        lowest = max(everything.min() * 0.999, largest * 1e-5)  # smaller ones are in the first bin
        most = max(map(len, errors.values()))
        bins = np.geomspace(lowest, largest * 1.001, int(np.clip(3 * most**0.5, 8, 50)))
        for place, (label, values) in enumerate(errors.items()):
            weights = np.full(len(values), 100 / len(values))
            shown = np.maximum(MEV * values, lowest)
            axes.hist(
                shown, bins.tolist(), weights=weights, histtype="step", linewidth=1.4, label=label,
                **series_style(place),
            )  # fmt: skip
        axes.set(xlabel=name, ylabel="share (%)", xscale="log")
        plain_ticks(axes.xaxis)
    legends(figure, [axes for axes, errors in zip(row, panels.values(), strict=True) if len(errors) > 1])
    return figure


def trend_figure(panels: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Force error of atoms (eV/Å) against another quantity: the mean in bins of equal counts, and 10 to 90 %.

    panels: axis label -> (quantity [n], error [n]), both above 0: the axes are logarithmic.
    """
    figure, row = row_of_axes(len(panels), width=4.8)
    for axes, (name, (quantity, error)) in zip(row, panels.items(), strict=True):
        _draw_trend(axes, quantity, MEV * error)
        axes.set(xlabel=name, ylabel="force error of an atom (meV/Å)", xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            plain_ticks(axis)
        legends(figure, [axes])
    return figure


def calibration_figure(spread: np.ndarray, error: np.ndarray) -> Figure:
    """Error of the committee's mean force against its spread, both [n] in eV/Å, an atom each, as a cloud and in bins.

    In a bin both are root mean squares; on the line the spread is as large as the error.
    """
    figure, (axes,) = row_of_axes(1, width=5.2, height=4.2)
    kept = (spread > 0) & (error > 0)
    spread, error = MEV * spread[kept], MEV * error[kept]
    _draw_cloud(axes, spread, error)
    groups = np.array_split(np.argsort(spread), min(_BINS, len(spread)))
    x, y = (np.array([np.sqrt(np.mean(values[group] ** 2)) for group in groups]) for values in (spread, error))
    axes.plot(x, y, color=COLOURS[0], marker="o", markersize=4, label="root mean square in bins of spread")
    axes.axline((x[0], x[0]), (x[-1], x[-1]), color="0.4", linewidth=0.9, linestyle="--", label="spread = error")
    axes.set(xlabel="spread of the committee (meV/Å)", ylabel="error of its mean (meV/Å)", xscale="log", yscale="log")
    axes.set_ylim(0.9 * min(np.quantile(error, 0.002), y.min()), error.max() * 1.3)
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis)
    legends(figure, [axes])
    return figure


def _draw_cloud(axes: Axes, quantity: np.ndarray, error: np.ndarray) -> None:
    """At most some 4,000 points; few are larger and darker."""
    shown = slice(None, None, max(1, len(error) // 4000))
    look: dict[str, Any] = {"s": 3, "alpha": 0.15} if len(error) > _FEW else {"s": 14, "alpha": 0.6}
    axes.scatter(quantity[shown], error[shown], linewidths=0, color="0.5", rasterized=True, **look)


def _draw_trend(axes: Axes, quantity: np.ndarray, error: np.ndarray) -> None:
    _draw_cloud(axes, quantity, error)
    order = np.argsort(quantity)
    groups = [group for group in np.array_split(order, min(_BINS, len(order))) if len(group)]
    x = [np.median(quantity[group]) for group in groups]
    low, high = np.array([np.quantile(error[group], [0.1, 0.9]) for group in groups]).T
    varies = bool(np.ptp(quantity) and np.ptp(error))
    rank = f"; rank correlation {scipy.stats.spearmanr(quantity, error).statistic:.2f}" if varies else ""
    axes.fill_between(x, low, high, color=COLOURS[0], alpha=0.2, linewidth=0, label="10 to 90 %")
    means = [error[group].mean() for group in groups]
    axes.plot(x, means, color=COLOURS[0], marker="o", markersize=3.5, label=f"mean{rank}")
    axes.set_ylim(0.9 * min(np.quantile(error, 0.002), low.min()), error.max() * 1.3)
