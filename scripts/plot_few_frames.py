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

from denskit.analysis.plots import COLOURS, row_of_axes, save_figure

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


def draw(axes: Axes, numbers: Numbers, ticks: list[int], *, bars: bool) -> None:
    """Means over seeds, with bars their standard errors."""
    for variant, colour in VARIANTS.items():
        places = sorted(place for name, place in numbers if name == variant)
        rows = [np.array(numbers[variant, place]) for place in places]
        errors = [row.std(ddof=1) / len(row) ** 0.5 if len(row) > 1 else 0.0 for row in rows]
        means = [row.mean() for row in rows]
        yerr = errors if bars else None
        axes.errorbar(places, means, yerr=yerr, label=variant, color=colour, marker="o", markersize=4, capsize=2)
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick}" for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.legend(frameon=False, fontsize=9)


def main() -> None:
    """Both panels."""
    figure, (left, right) = row_of_axes(2, width=4.6, title="rMD17 ethanol (DFT), preset equiformer, three seeds")
    frames = read("few_frames.csv", "frames")
    draw(left, frames, [18, 20, 25, 30, 35], bars=True)
    sizes = sorted({place for _, place in frames})
    left.set(xlabel="training structures", ylabel="force MAE (meV/Å)", xscale="log")
    left.set_xticks(sizes, [f"{size:g}" for size in sizes])
    left.xaxis.set_minor_locator(NullLocator())
    draw(right, read("few_frames_curves.csv", "step"), [20, 25, 30, 40, 50], bars=False)
    right.set(xlabel="training step, 100 structures", ylabel="force MAE (meV/Å), validation")
    print(f"Wrote {save_figure(figure, DOCS / 'images' / 'few_frames.png')}")


if __name__ == "__main__":
    main()
