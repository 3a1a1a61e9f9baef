"""Figures of a run: learning curves and parity; and the style of all figures.

Everything is drawn with matplotlib's Agg canvas (no display needed) and labelled in meV, meV/Å and steps.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

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
    100: (1.0,),
    10: (1.0, 2.0, 5.0),
    2: (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0),
}
# Any two differ by 20 or more in CIELAB, also as deuteranopes and protanopes see them.
COLOURS = ("#3b6fb6", "#d1702b", "#3a8f5c", "#cc79a7", "#7d2a26", "#6fb7e9")
_DASHES = ("-", "--", ":")  # of the first six series, of the next six, ...
_MARKERS = ("o", "s", "^", "D", "v", "P")
_INSIDE = 4  # labels in a panel; more would cover it
_LETTERS = 34  # in a line of a legend
_INCHES = {"letter": 0.08, "line": 0.21, "key": 0.75}  # of a legend beside the panels
_TURNS = 20  # that series of a parity plot take
_FEW = 100  # points that are drawn larger


def series_style(place: int, *, points: bool = False) -> dict[str, Any]:
    """Colour and dashes of a line by its place among the lines of a panel, and a marker: eighteen differ."""
    turn, colour = divmod(place, len(COLOURS))
    style = {"color": COLOURS[colour], "linestyle": _DASHES[turn % len(_DASHES)]}
    return style | {"marker": _MARKERS[colour]} if points else style


def wrapped(text: str, letters: int) -> str:
    """Text in as few lines of ``letters`` as hold it, of similar length; names break after _ and /, $ is plain."""
    parts = re.sub(r"([_/])(?=[^_/])", "\\1\v", text)  # white space that does not remain

    def lines(width: int) -> list[str]:
        return textwrap.wrap(parts, width, replace_whitespace=False)

    count = len(lines(letters))
    width = next((width for width in range(letters // 2, letters) if len(lines(width)) <= count), letters)
    return "\n".join(lines(width)).replace("\v", "").replace("$", r"\$")


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
    legends(figure, row)
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
    legends(figure, row)
    return figure


def plot_overview(runs: Mapping[str, Path], forces: Mapping[str, Pair], output: Path) -> Path:
    """Several runs on one page: learning curves of energy and forces, and the parity of forces (eV/Å) after training.

    ``runs`` maps labels to run folders, ``forces`` has the same labels.  Raises as :func:`metrics_of`.
    """
    figure, row = row_of_axes(3, width=4.4, height=4.0)
    curves = {label: metrics_of(RunFolder(folder)) for label, folder in runs.items()}
    _draw_curves(row[:2], ["energy", "forces"], curves)
    _draw_parity(row[2], "force (meV/Å)", forces)
    legends(figure, row[:2])
    legends(figure, row[2:])
    return save_figure(figure, output)


def row_of_axes(count: int, *, width: float, height: float = 3.8, title: str = "") -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` panels in a row, each ``width`` x ``height`` inches, in the style of all our plots."""
    figure = Figure(figsize=(count * width, height), dpi=DPI, layout="constrained")
    row = [figure.add_subplot(1, count, position) for position in range(1, count + 1)]
    for axes in row:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
    lines = [wrapped(line, int(count * width * LETTERS)) for line in title.splitlines()]
    figure.suptitle("\n".join(lines), fontsize=11)
    return figure, row


def plain_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis as plain numbers, by its length: powers of ten, 1-2-5, finer, or evenly spaced."""
    low, high = axis.get_view_interval()
    steps = next((subs for span, subs in TICKS.items() if high >= span * low), None)
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]) if steps is None else LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
    axis.set_minor_formatter(NullFormatter())
    if steps != TICKS[100]:
        axis.set_minor_locator(NullLocator())  # of a LogLocator; between other ticks they mislead


def whole_ticks(axis: Axis) -> None:
    """Ticks at whole numbers alone, as of steps, moves and degrees."""
    axis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def legends(figure: Figure, row: Sequence[Axes], *, title: str = "") -> None:
    """A legend in each panel; where many or long labels would cover the panels, one beside them."""
    found = [axes.get_legend_handles_labels() for axes in row]
    style: dict[str, Any] = {"frameon": False, "fontsize": 9, "title": title or None, "title_fontsize": 9}
    if all(len(labels) <= _INSIDE and all(len(label) <= _LETTERS for label in labels) for _, labels in found):
        for axes, (handles, labels) in zip(row, found, strict=True):
            if labels:
                axes.legend(handles, [wrapped(label, _LETTERS) for label in labels], **style)
        return
    entries = {label: handle for handles, labels in found for handle, label in zip(handles, labels, strict=True)}
    texts = [wrapped(label, _LETTERS) for label in entries]
    lines = "\n".join(texts).splitlines()
    columns = math.ceil(len(lines) * _INCHES["line"] / figure.get_figheight())
    width = _INCHES["key"] + _INCHES["letter"] * max(map(len, lines))
    figure.set_figwidth(figure.get_figwidth() + columns * width)
    figure.legend(list(entries.values()), texts, loc="outside right center", ncols=columns, **style)


def log_errors(axes: Axes) -> None:
    """A logarithmic y axis with plain ticks, where something drawn is above zero: zeros alone have none."""
    if any((np.asarray(line.get_ydata()) > 0).any() for line in axes.lines):
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)


def png_of(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG file."""
    stream = io.BytesIO()
    canvas = FigureCanvasAgg(figure)
    if figure.legends:
        figure.draw_without_rendering()  # ticks change with the room that the legend leaves
    canvas.print_png(stream)
    return stream.getvalue()


def save_figure(figure: Figure, output: Path) -> Path:
    """Write a figure as PNG; returns its path."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with writing(output):
        output.write_bytes(png_of(figure))
    return output


def _draw_curves(row: Sequence[Axes], names: Sequence[str], runs: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    for axes, name in zip(row, names, strict=True):
        trained, unit = f"train_{COLUMNS[name]}", UNITS[name]
        for place, (label, columns) in enumerate(runs.items()):
            style = series_style(place)
            train, valid = ("", label) if len(runs) > 1 else ("training", "validation")
            if trained in columns:
                draw_column(axes, columns, trained, linewidth=0.7, alpha=0.6, label=train, unit=unit, **style)
            style |= series_style(place, points=True)
            draw_column(axes, columns, f"valid_{COLUMNS[name]}", label=valid, markersize=3.5, unit=unit, **style)
        if len(runs) > 1 and any(trained in columns for columns in runs.values()):
            lines = any(np.size(line.get_xdata()) > 1 for line in axes.lines)
            look = {"linewidth": 0.7, "label": "thin: training"} if lines else {"marker": "x", "label": "training"}
            axes.plot([], [], color="0.5", linestyle="-" if lines else "none", **look)
        axes.set(xlabel="training step", ylabel=f"{name} error, MAE ({unit})")
        whole_ticks(axes.xaxis)
        steps = np.concatenate([columns["step"] for columns in runs.values()])
        axes.set_xlim(steps.min() - 0.03 * (np.ptp(steps) or 1), steps.max() + 0.03 * (np.ptp(steps) or 1))  # as beside
        log_errors(axes)
        if not any(np.size(line.get_xdata()) for line in axes.lines):
            axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="0.4")


def draw_column(
    axes: Axes, columns: Mapping[str, np.ndarray], name: str, *, label: str = "", unit: str = "", **style: Any
) -> None:
    """The measured points of a column over steps; of one point alone the label has the value."""
    values = columns.get(name, np.full_like(columns["step"], np.nan))
    measured = np.isfinite(values)
    steps, values = columns["step"][measured], values[measured]
    if len(values) == 1:
        style |= {"marker": style.get("marker", "x")}
        label = label and f"{label}: {values[0]:.4g} {unit}".rstrip()
    axes.plot(steps, values, label=label or "_", **style)


def _draw_parity(axes: Axes, name: str, pairs: Mapping[str, Pair]) -> None:
    unit = name[name.index("(") + 1 : -1] + (" an atom" if "per atom" in name else "")
    turns = _TURNS if len(pairs) > 1 else 1  # so that no series hides the others
    for turn in range(turns):
        for place, (label, pair) in enumerate(pairs.items()):
            reference, predicted = (MEV * np.ravel(values) for values in pair)
            style = _points(place, reference.size)
            axes.scatter(reference[turn::turns], predicted[turn::turns], linewidths=0, rasterized=True, **style)
            if turn == 0:
                error = float(np.mean(np.abs(predicted - reference)))
                text = f"MAE {error:,.0f} {unit}" if error >= 100 else f"MAE {error:.3g} {unit}"
                key = {"color": style["color"], "marker": style["marker"], "linestyle": "none"}
                axes.plot([], [], label=f"{label}: {text}" if label else text, **key)
    axes.axline((0, 0), slope=1, color="0.6", linewidth=0.9, zorder=1)
    ends = np.array([axes.get_xlim(), axes.get_ylim()])
    axes.set(xlim=(ends.min(), ends.max()), ylim=(ends.min(), ends.max()))
    axes.set(xlabel=f"reference {name}", ylabel=f"predicted {name}", aspect="equal")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))


def _points(place: int, count: int) -> dict[str, Any]:
    """Of a cloud of ``count`` points: pale and small where they are many."""
    size, alpha = (18, 0.9) if count <= _FEW else (5, 0.35)
    style = series_style(place, points=True)
    return {"color": style["color"], "marker": style["marker"], "s": size, "alpha": alpha}
