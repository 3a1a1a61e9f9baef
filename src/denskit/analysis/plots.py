"""Figures of a run: learning curves and parity; and the style of all figures.

Everything is drawn with matplotlib's Agg canvas (no display needed) and labelled in meV, meV/Å and steps.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from denskit.files import writing
from denskit.training.overview import metrics_of
from denskit.training.run_folder import RunFolder

Pair = tuple[np.ndarray, np.ndarray]  # reference, predicted

MEV = 1000.0  # meV per eV
UNITS = {"energy": "meV", "forces": "meV/Å", "stress": "meV/Å³"}
COLUMNS = {  # of metrics.csv, after train_ or valid_
    "energy": "energy_mae_meV", "forces": "forces_mae_meV_per_A", "stress": "stress_mae_meV_per_A3",
}  # fmt: skip
DPI = 130
LETTERS = 11  # of a title, to an inch
TICKS = {  # of a logarithmic axis, by largest / smallest value at least
    300: (1.0,),
    10: (1.0, 2.0, 5.0),
    2: (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0),
}
COLOURS = ("#3b6fb6", "#d1702b", "#3a8f5c", "#8a4fa3", "#b5483f", "#6b6b6b")
_DASHES, _MARKERS = ("-", "--", ":"), ("o", "^", "s")  # of the first six series, of the next six, ...


def series_style(place: int) -> dict[str, Any]:
    """Colour and dashes of a line by its place among the lines of a panel: eighteen differ."""
    turn, colour = divmod(place, len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": _DASHES[turn % len(_DASHES)]}


def relative(pair: Pair) -> Pair:
    """Both sides less the mean of the reference."""
    return pair[0] - pair[0].mean(), pair[1] - pair[0].mean()


def parity_figure(panels: Mapping[str, Mapping[str, Pair]], *, title: str = "") -> Figure:
    """Predicted against reference values.  Raises ValueError without panels.

    panels: "QUANTITY (UNIT)" of each panel -> label -> (reference, predicted) in a thousand times that unit, any shape.
    """
    if not panels:
        raise ValueError("nothing to draw: the structures have neither energies nor forces as labels")
    figure, row = row_of_axes(len(panels), width=4.4, height=4.2, title=title)
    for axes, (name, pairs) in zip(row, panels.items(), strict=True):
        _draw_parity(axes, name, pairs)
    return figure


def curves_figure(runs: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """Errors of several runs over steps, on logarithmic axes: energy, forces, and stress where it was trained.

    Validation is drawn with dots, training (with corrupted structures as they were trained on) thin.  ``runs`` maps
    labels to the columns of :func:`metrics_of`.
    """
    known = set().union(*runs.values())
    names = [name for name in UNITS if name != "stress" or {f"train_{COLUMNS[name]}", f"valid_{COLUMNS[name]}"} & known]
    figure, row = row_of_axes(len(names), width=4.6)
    _draw_curves(row, names, runs)
    return figure


def plot_overview(runs: Mapping[str, Path], forces: Mapping[str, Pair], output: Path) -> Path:
    """Several runs on one page: learning curves of energy and forces, and the parity of forces (eV/Å) after training.

    ``runs`` maps labels to run folders, ``forces`` has the same labels.  Raises as :func:`metrics_of`.
    """
    figure, row = row_of_axes(3, width=4.4, height=4.0)
    curves = {label: metrics_of(RunFolder(folder)) for label, folder in runs.items()}
    _draw_curves(row[:2], ["energy", "forces"], curves)
    _draw_parity(row[2], "force (meV/Å)", forces)
    return save_figure(figure, output)


def row_of_axes(count: int, *, width: float, height: float = 3.8, title: str = "") -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` panels in a row, each ``width`` x ``height`` inches, in the style of all our plots."""
    figure = Figure(figsize=(count * width, height), dpi=DPI, layout="constrained")
    row = [figure.add_subplot(1, count, position) for position in range(1, count + 1)]
    for axes in row:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
    lines = [textwrap.fill(line, int(count * width * LETTERS)) for line in title.splitlines()]
    figure.suptitle("\n".join(lines), fontsize=11)
    return figure, row


def plain_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis as plain numbers, by its length: powers of ten, 1-2-5, finer, or evenly spaced."""
    low, high = axis.get_view_interval()
    steps = next((subs for span, subs in TICKS.items() if high >= span * low), None)
    axis.set_major_locator(MaxNLocator(5) if steps is None else LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def log_errors(axes: Axes) -> None:
    """A logarithmic y axis with plain ticks, where something drawn is above zero: zeros alone have none."""
    if any((np.asarray(line.get_ydata()) > 0).any() for line in axes.lines):
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)


def png_of(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG file."""
    stream = io.BytesIO()
    FigureCanvasAgg(figure).print_png(stream)
    return stream.getvalue()


def save_figure(figure: Figure, output: Path) -> Path:
    """Write a figure as PNG; returns its path."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with writing(output):
        output.write_bytes(png_of(figure))
    return output


def _draw_curves(row: Sequence[Axes], names: Sequence[str], runs: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    for axes, name in zip(row, names, strict=True):
        for place, (label, columns) in enumerate(runs.items()):
            style = series_style(place)
            train, valid = (None, label) if len(runs) > 1 else ("training", "validation")
            trained = f"train_{COLUMNS[name]}"
            if trained in columns:
                draw_column(axes, columns, trained, linewidth=0.7, alpha=0.6, label=train, **style)
            draw_column(axes, columns, f"valid_{COLUMNS[name]}", label=valid, marker="o", markersize=3.5, **style)
        if len(runs) > 1:
            axes.plot([], [], color="0.5", linewidth=0.7, label="thin: training")
        axes.set(xlabel="training step", ylabel=f"{name} error, MAE ({UNITS[name]})")
        steps = np.concatenate([columns["step"] for columns in runs.values()])
        axes.set_xlim(steps.min() - 0.03 * (np.ptp(steps) or 1), steps.max() + 0.03 * (np.ptp(steps) or 1))  # as beside
        log_errors(axes)
        axes.legend(frameon=False, fontsize=9)


def draw_column(axes: Axes, columns: Mapping[str, np.ndarray], name: str, **style: Any) -> None:
    """The measured points of a column over steps; one point alone as a dot with its value."""
    values = columns.get(name, np.full_like(columns["step"], np.nan))
    measured = np.isfinite(values)
    steps, values = columns["step"][measured], values[measured]
    if len(values) == 1:
        style |= {"marker": style.get("marker", "x")}
        axes.annotate(f"{values[0]:.4g}", (steps[0], values[0]), xytext=(6, 4), textcoords="offset points", fontsize=9)
    axes.plot(steps, values, **style)


def _draw_parity(axes: Axes, name: str, pairs: Mapping[str, Pair]) -> None:
    unit = name[name.index("(") + 1 : -1] + (" an atom" if "per atom" in name else "")
    for place, (label, pair) in enumerate(pairs.items()):
        turn, colour = divmod(place, len(COLOURS))
        style: dict[str, Any] = {"color": COLOURS[colour], "marker": _MARKERS[turn % len(_MARKERS)]}
        reference, predicted = (MEV * np.ravel(values) for values in pair)
        error = float(np.mean(np.abs(predicted - reference)))
        text = f"{label} MAE {error:,.0f} {unit}" if error >= 100 else f"{label} MAE {error:.3g} {unit}"
        axes.scatter(reference, predicted, s=5, alpha=0.35, linewidths=0, label=text, rasterized=True, **style)
    axes.axline((0, 0), slope=1, color="0.6", linewidth=0.9, zorder=1)
    ends = np.array([axes.get_xlim(), axes.get_ylim()])
    axes.set(xlim=(ends.min(), ends.max()), ylim=(ends.min(), ends.max()))
    axes.set(xlabel=f"reference {name}", ylabel=f"predicted {name}", aspect="equal")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.legend(frameon=False, fontsize=9, markerscale=3)
