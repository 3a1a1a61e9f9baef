"""Structures to look at: a few frames with arrows and a ghost, for the browser and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from ase.data import chemical_symbols, covalent_radii
from ase.data.colors import jmol_colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle

from denskit.analysis.plots import row_of_axes

MOST_ATOMS, MOST_FRAMES = 400, 100  # that a scene shows
REFERENCE, PREDICTED, NOISE = "#2f62b0", "#e07a1f", "#b5483f"  # colours of arrows
LONGEST = 2.0  # Å, of the longest arrow
NON_METALS = (1, 2, 5, 6, 7, 8, 9, 10, 14, 15, 16, 17, 18, 33, 34, 35, 36, 52, 53, 54)  # bonds are drawn among them
_BOND = 1.2  # longest bond, in sums of covalent radii
_PANELS = 4  # frames of the figure
_LEAST = 1.5  # Å, half of the width of a panel: a lone atom is a ball, not a wall
_MOVED = 0.01  # Å; atoms that moved less have no ghost
_DIGITS = 3  # of coordinates in the page


@dataclass(frozen=True)
class Arrows:
    """One arrow an atom."""

    colour: str
    start: np.ndarray  # [n, 3] Å
    vector: np.ndarray  # [n, 3] Å
    radius: float = 0.06  # Å
    opacity: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One structure; a ghost is the same atoms elsewhere, drawn pale where they moved."""

    label: str
    numbers: np.ndarray  # [n]
    positions: np.ndarray  # [n, 3] Å
    cell: np.ndarray | None = None  # [3, 3] Å, drawn where given
    ghost: np.ndarray | None = None  # [n, 3] Å
    arrows: tuple[Arrows, ...] = ()
    marked: int | None = None  # an atom that gets its name as a label


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Frames that a slider chooses from."""

    name: str
    title: str  # what is shown, in the page and above the figure
    frames: Sequence[Frame]
    caption: str = ""  # more, in the page
    first: int = 0  # the frame that is shown first
    control: Literal["choose", "play"] = "choose"
    legend: dict[str, str] = field(default_factory=dict)  # colour -> meaning
    ranked: bool = False  # the first frames matter most

    def document(self) -> dict[str, Any]:
        """The frames as plain JSON for viewer.js."""
        return {"frames": [_document(frame) for frame in self.frames]}

    def figure(self) -> Figure:
        """At most four of the frames side by side: the first of a ranking, evenly spaced ones of others."""
        count = min(_PANELS, len(self.frames))
        last = count - 1 if self.ranked else len(self.frames) - 1
        places = np.unique(np.linspace(0, last, count).round().astype(int))
        part = f"; {len(places)} of them here" if len(places) < len(self.frames) else ""
        figure, row = row_of_axes(len(places), width=3.4, height=3.9, title=self.title + part)
        first = self.frames[places[0]]
        alike = all(np.array_equal(frame.numbers, first.numbers) for frame in self.frames)
        view = _view(first) if alike else None  # one view of one structure in all panels
        for axes, place in zip(row, places, strict=True):
            draw_frame(axes, self.frames[place], view)
        if self.legend:
            keys = [Line2D([], [], color=colour, linewidth=2, label=text) for colour, text in self.legend.items()]
            figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False, fontsize=8)
        return figure


def cell_of(cell: np.ndarray, pbc: np.ndarray) -> np.ndarray | None:
    """The cell [3, 3] (Å) to draw; None for a molecule."""
    return cell if pbc.any() and np.abs(np.linalg.det(cell)) > 0 else None


def arrow_scale(vectors: np.ndarray) -> float:
    """Å of arrow for one unit of the vectors, so that the longest has ``LONGEST``; 1 where all are zero."""
    longest = float(np.linalg.norm(vectors, axis=-1).max())
    return LONGEST / longest if longest > 0 else 1.0


def draw_frame(axes: Axes, frame: Frame, view: np.ndarray | None = None) -> None:
    """The structure along the last row of ``view`` [3, 3]: bonds, atoms with far ones first, arrows.

    view: axes of the picture as rows; None: along the thinnest direction of the structure.
    """
    centre = frame.positions.mean(0)
    view = _view(frame) if view is None else view

    def seen(points: np.ndarray) -> np.ndarray:
        return (points - centre) @ view.T

    for begin, end in edges_of(frame.cell) if frame.cell is not None else []:
        axes.plot(*seen(np.array([begin, end])).T[:2], color="0.6", linewidth=0.7)
    if frame.ghost is not None:
        _draw_atoms(axes, frame.numbers, seen(frame.ghost), alpha=0.3)
    _draw_atoms(axes, frame.numbers, seen(frame.positions), alpha=1.0)
    for arrows in frame.arrows:
        start, end = seen(arrows.start)[:, :2], seen(arrows.start + arrows.vector)[:, :2]
        long = np.linalg.norm(end - start, axis=-1) > _MOVED
        for tail, tip in zip(start[long], end[long], strict=True):
            style = {"arrowstyle": "-|>", "color": arrows.colour, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", tip, tail, arrowprops={**style, "alpha": arrows.opacity}, zorder=5)
        axes.update_datalim(end)
    axes.update_datalim([(-_LEAST, -_LEAST), (_LEAST, _LEAST)])
    axes.set_aspect("equal", anchor="N")  # labels of several panels at one height
    axes.margins(0.1)
    axes.autoscale_view()
    axes.axis("off")
    axes.set_title(frame.label.replace("; ", "\n").replace(": ", "\n", 1), fontsize=8)


def _view(frame: Frame) -> np.ndarray:
    """Axes [3, 3] of a structure, the longest first; right-handed, since a mirror image is another molecule."""
    around = frame.positions - frame.positions.mean(0)
    directions = np.linalg.eigh(around.T @ around)[1].T[::-1]  # also of one or two atoms
    return directions * np.array([[1.0], [1.0], [np.linalg.det(directions)]])


def edges_of(cell: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The twelve edges of a cell [3, 3] as pairs of points (Å)."""
    corners = [np.array([i, j, k]) for i in (0, 1) for j in (0, 1) for k in (0, 1)]
    return [(a @ cell, b @ cell) for a in corners for b in corners if (b - a).sum() == 1 and (b - a).min() == 0]


def _draw_atoms(axes: Axes, numbers: np.ndarray, points: np.ndarray, *, alpha: float) -> None:
    """Circles of 0.4 covalent radii, and bonds of non-metals."""
    radii = covalent_radii[numbers]
    near = np.linalg.norm(points[:, None] - points, axis=-1) < _BOND * (radii[:, None] + radii)
    bonded = np.isin(numbers, NON_METALS)
    for i, j in np.argwhere(np.triu(near & bonded & bonded[:, None], 1)):
        axes.plot(*points[[i, j], :2].T, color="0.55", linewidth=2.0, alpha=alpha, zorder=2)
    for atom in np.argsort(points[:, 2]):
        colour, edge = jmol_colors[numbers[atom]], {"edgecolor": "0.3", "linewidth": 0.6}
        axes.add_patch(
            Circle(
                (points[atom, 0], points[atom, 1]), 0.4 * radii[atom], facecolor=colour, alpha=alpha, zorder=3, **edge
            )
        )


def _document(frame: Frame) -> dict[str, Any]:
    def rounded(values: np.ndarray) -> list[list[float]]:
        return np.round(values, _DIGITS).tolist()

    document: dict[str, Any] = {
        "label": frame.label,
        "symbols": [chemical_symbols[number] for number in frame.numbers],
        "positions": rounded(frame.positions),
        "bonded": [chemical_symbols[number] for number in np.unique(frame.numbers) if number in NON_METALS],
        "arrows": [
            {
                "colour": arrows.colour, "radius": arrows.radius, "opacity": arrows.opacity,
                "start": rounded(arrows.start), "end": rounded(arrows.start + arrows.vector),
            }
            for arrows in frame.arrows
        ],
    }  # fmt: skip
    if frame.marked is not None:
        document["marked"] = frame.marked
    if frame.ghost is not None:
        moved = np.linalg.norm(frame.ghost - frame.positions, axis=-1) > _MOVED
        symbols = [chemical_symbols[number] for number in frame.numbers[moved]]
        document["ghost"] = {"symbols": symbols, "positions": rounded(frame.ghost[moved])}
    if frame.cell is not None:
        document["edges"] = [rounded(np.array(edge)) for edge in edges_of(frame.cell)]
    return document
