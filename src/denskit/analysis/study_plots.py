"""Figures of a study: learning curves by variant, and errors against an axis such as the number of training frames."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from matplotlib.transforms import offset_copy

from denskit.analysis.plots import legends, log_errors, row_of_axes, save_figure, series_style, whole_ticks
from denskit.evaluation.study.config import ENERGY, FORCES, METRICS, describe
from denskit.evaluation.study.results import ROUNDING, Column, Found, Results
from denskit.training.overview import metrics_of
from denskit.training.run_folder import RunFolder

_NAMES = {"data.split.train": "training frames", "training.max_steps": "training steps"}  # of axes
_MOST = 4  # panels in a row
_SIDE = 7.0  # points between two variants at the only step
_APART, _SPREAD = 0.06, 0.6  # of the gap between two values: two variants, all variants
_FARTHEST = 0.04  # of a value on a logarithmic axis, of the length of a linear one: any variant from its value


def plot_study_results(results: Results, folder: Path) -> list[Path]:
    """Write the figures of a study as PNG files; return their paths."""
    return [save_figure(figure, folder / f"{name}.png") for name, figure in study_figures(results).items()]


def study_figures(results: Results) -> dict[str, Figure]:
    """Learning curves where there are validation errors, and one more figure for each numeric axis, by name."""
    curves = _curves_figure(results)
    figures = {} if curves is None else {"learning_curves": curves}
    axes = list(dict.fromkeys(key for run in results.found for key in run.values))
    for axis in axes:
        values = {_number(run.values[axis]) for run in results.found}
        if len(values) > 1 and all(map(math.isfinite, values)):
            figures[axis.replace(".", "_")] = _axis_figure(results, axis)
    return figures


def _number(value: object) -> float:
    """A value of an axis as a number, also 5e-4, which YAML takes for text; NaN for what is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def _axis_figure(results: Results, axis: str) -> Figure:
    """Error of each variant against a numeric axis, one panel a test and metric; bars are standard errors."""
    there = [column for column in results.columns if column not in results.unresolved] or list(results.columns)
    columns = sorted(there, key=lambda column: column.metric != FORCES)[:_MOST]
    title = _over_seeds("mean and standard error", results.found)
    figure, row = row_of_axes(len(columns), width=4.4, title=_title(results, title))
    values = sorted({_number(run.values[axis]) for run in results.found})
    scale = "log" if values[0] > 0 else "linear"
    for axes, column in zip(row, columns, strict=True):
        _draw_axis(axes, results, axis, column, values, scale)
        mae = "_mae_" in column.metric
        title = column.title(results.several_tests)
        axes.set(xlabel=_NAMES.get(axis, axis), ylabel=f"MAE, {title}" if mae else title, xscale=scale)
        if mae:
            log_errors(axes)
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.xaxis.set_minor_locator(NullLocator())
    legends(figure, row)
    return figure


def _beside(values: Sequence[float], scale: str, count: int) -> Callable[[float, int], float]:
    """Moves a value for one of ``count`` variants, so that bars stay apart, and points near their values."""
    gap = float(np.diff(np.log(values) if scale == "log" else values).min())
    farthest = math.log1p(_FARTHEST) if scale == "log" else _FARTHEST * (values[-1] - values[0])
    middle = (count - 1) / 2
    apart = min(_APART * gap, _SPREAD * gap / count, farthest / max(middle, 1))

    def moved(value: float, place: int) -> float:
        shift = apart * (place - middle)
        return value * math.exp(shift) if scale == "log" else value + shift

    return moved


def _draw_axis(axes: Axes, results: Results, axis: str, column: Column, values: Sequence[float], scale: str) -> None:
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for row in results.rows:
        if column in row.means:
            rest = describe({key: value for key, value in row.values.items() if key != axis})
            label = f"{row.variant}, {rest}" if rest else row.variant
            mean = row.means[column]
            lines.setdefault(label, []).append((_number(row.values[axis]), mean.value, mean.error))
    moved = _beside(values, scale, len(lines))
    for place, (label, points) in enumerate(lines.items()):
        x, y, error = np.array(sorted(points)).T
        x = np.array([moved(value, place) for value in x])
        style = series_style(place, points=True)
        axes.errorbar(x, y, yerr=np.nan_to_num(error), markersize=4, capsize=2, label=label, **style)


def _curves_figure(results: Results) -> Figure | None:
    """Validation error of the forces (of energies where there are none) over steps, one panel a point: mean over seeds,
    band from lowest to highest.  None without validation structures."""
    points = list(dict.fromkeys(run.point for run in results.found))
    shown = points[:_MOST]
    title = _over_seeds("mean and range", [run for run in results.found if run.point in shown])
    if len(points) > _MOST:
        title += f" (the first {_MOST} of {len(points)})"
    curves = {run.folder: metrics_of(RunFolder(run.folder)) for run in results.found if run.point in shown}
    forces = [np.nan_to_num(found.get(f"valid_{FORCES}", np.zeros(1))).max() for found in curves.values()]
    metric = FORCES if max(forces) > ROUNDING else ENERGY
    judged = {at for at, found in curves.items() if np.isfinite(found.get(f"valid_{metric}", np.nan)).any()}
    drawn = [point for point in shown if any(run.point == point and run.folder in judged for run in results.found)]
    if not drawn:
        return None
    figure, row = row_of_axes(len(drawn), width=4.6, title=_title(results, title))
    for axes, point in zip(row, drawn, strict=True):
        for place, variant in enumerate(dict.fromkeys(run.variant for run in results.found)):
            runs = [run for run in results.found if run.point == point and run.variant == variant]
            _draw_curve(axes, [curves[run.folder] for run in runs], variant, place, f"valid_{metric}")
        whole_ticks(axes.xaxis)
        axes.set(xlabel="training step", ylabel=f"validation MAE, {METRICS[metric]}", title=point)
        log_errors(axes)
    legends(figure, row)
    return figure


def _over_seeds(measures: str, runs: Sequence[Found]) -> str:
    """What is drawn of the runs, in words."""
    counts = Counter((run.point, run.variant) for run in runs).values()
    few, many = min(counts), max(counts)
    if many == 1:
        return "one seed"
    return f"{measures} over {many} seeds" if few == many else f"{measures} over seeds ({few} to {many})"


def _title(results: Results, what: str = "") -> str:
    """The title of a figure, and a warning in a line of its own."""
    title = f"{results.title}: {what}" if what else results.title
    return f"{title}\n{results.warning}" if results.warning else title


def _draw_curve(axes: Axes, runs: Sequence[dict[str, np.ndarray]], label: str, place: int, error: str) -> None:
    curves = []
    for columns in runs:
        if error in columns:
            kept = np.isfinite(columns[error])
            curves.append((columns["step"][kept], columns[error][kept]))
    if not curves:
        return
    steps = sorted(set.intersection(*(set(curve[0].tolist()) for curve in curves)))
    values = np.array([[curve[1][curve[0] == step][0] for step in steps] for curve in curves])
    style = {**series_style(place, points=True), "label": label, "markersize": 4}
    if len(steps) == 1:
        beside = offset_copy(axes.transData, axes.get_figure(root=True), x=_SIDE * place, units="points")
        mean = values.mean(0)
        bars = [mean - values.min(0), values.max(0) - mean]
        axes.errorbar(steps, mean, yerr=bars, capsize=2, transform=beside, **style)
        axes.update_datalim([(steps[0], values.min()), (steps[0], values.max())])
        axes.autoscale_view()
        return
    axes.plot(steps, values.mean(0), **style)
    axes.fill_between(steps, values.min(0), values.max(0), color=style["color"], alpha=0.15, linewidth=0)
