"""Draw docs/images/few_frames.png from the measured errors in docs/data: DeNS against frames, and against the length.

    python scripts/plot_few_frames.py

docs/results.md says how both files were measured.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from denskit.analysis.plots import COLOURS, plain_ticks, row_of_axes, save_figure

DOCS = Path(__file__).resolve().parent.parent / "docs"
VARIANTS = dict(zip(("without DeNS", "with DeNS"), COLOURS, strict=False))
Numbers = dict[tuple[str, float], list[float]]


def read(name: str, at: str) -> Numbers:
    """Force errors (meV/Å) of all seeds by variant and the column ``at``."""
    found: Numbers = defaultdict(list)
    with (DOCS / "data" / name).open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            found[row["variant"], float(row[at])].append(float(row["forces_mae_meV_per_A"]))
    return found


def draw_frames(axes: Axes, numbers: Numbers) -> None:
    """Means over seeds and their standard errors against the number of structures."""
    for variant, colour in VARIANTS.items():
        places = {at: np.array(rows) for (v, at), rows in numbers.items() if v == variant}
        x = sorted(places)
        means = [places[at].mean() for at in x]
        errors = [places[at].std(ddof=1) / len(places[at]) ** 0.5 if len(places[at]) > 1 else 0 for at in x]
        axes.errorbar(x, means, yerr=errors, label=variant, color=colour, marker="o", markersize=4, capsize=2)
    axes.set(xlabel="training structures", ylabel="force MAE (meV/Å), test", xscale="log", yscale="log")
    axes.set_xticks(x, [f"{at:.0f}" for at in x])
    axes.set_xlim(0.9 * x[0], 1.12 * x[-1])
    axes.xaxis.set_minor_locator(NullLocator())


def draw_curves(axes: Axes, numbers: Numbers) -> None:
    """Mean validation errors over the steps."""
    for variant, colour in VARIANTS.items():
        points = sorted((at, np.mean(rows)) for (v, at), rows in numbers.items() if v == variant)
        x, y = np.array([point for point in points if point[0] >= 1000]).T
        axes.plot(x, y, color=colour, label=variant, linewidth=1.8)
    axes.set(xlabel="training step, 100 structures", ylabel="force MAE (meV/Å), validation", yscale="log")


def main() -> None:
    """Both panels."""
    title = "rMD17 ethanol (DFT), preset equiformer, three seeds"
    figure, (left, right) = row_of_axes(2, width=4.6, title=title)
    draw_frames(left, read("few_frames.csv", "frames"))
    draw_curves(right, read("few_frames_curves.csv", "step"))
    for axes in (left, right):
        plain_ticks(axes.yaxis)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.legend(frameon=False, fontsize=8)
    print(f"Wrote {save_figure(figure, DOCS / 'images' / 'few_frames.png')}")


if __name__ == "__main__":
    main()
