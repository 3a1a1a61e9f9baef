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

from denskit.analysis.plots import legends, plain_ticks, row_of_axes, save_figure, series_style, whole_ticks

DOCS = Path(__file__).resolve().parent.parent / "docs"
VARIANTS = ("without DeNS", "with DeNS")
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
    for place, variant in enumerate(VARIANTS):
        places = {at: np.array(rows) for (v, at), rows in numbers.items() if v == variant}
        x = sorted(places)
        means = [places[at].mean() for at in x]
        errors = [places[at].std(ddof=1) / len(places[at]) ** 0.5 if len(places[at]) > 1 else 0 for at in x]
        style = series_style(place, points=True)
        axes.errorbar(x, means, yerr=errors, label=variant, markersize=4, capsize=2, **style)
    axes.set(xlabel="training structures", ylabel="force MAE, test (meV/Å)", xscale="log", yscale="log")
    axes.set_title("mean and standard error of 3 seeds", fontsize=10)
    axes.set_xticks(x, [f"{at:.0f}" for at in x])
    axes.set_xlim(0.9 * x[0], 1.12 * x[-1])
    axes.xaxis.set_minor_locator(NullLocator())


def draw_curves(axes: Axes, numbers: Numbers) -> None:
    """Validation errors over the steps: mean and range of the seeds."""
    for place, variant in enumerate(VARIANTS):
        x = sorted(at for v, at in numbers if v == variant)
        errors = np.array([numbers[variant, at] for at in x])
        style = series_style(place, points=True)
        axes.plot(x, errors.mean(1), label=variant, markersize=4, **style)
        axes.fill_between(x, errors.min(1), errors.max(1), color=style["color"], alpha=0.15, linewidth=0)
    axes.set(xlabel="training step", ylabel="force MAE, validation (meV/Å)", yscale="log")
    axes.set_title("100 structures: mean and range of 3 seeds", fontsize=10)
    whole_ticks(axes.xaxis)


def main() -> None:
    """Both panels."""
    figure, (left, right) = row_of_axes(2, width=4.6, title="rMD17 ethanol (DFT), Equiformer without parity")
    draw_frames(left, read("few_frames.csv", "frames"))
    draw_curves(right, read("few_frames_curves.csv", "step"))
    for axes in (left, right):
        plain_ticks(axes.yaxis)
    legends(figure, [left, right])
    print(f"Wrote {save_figure(figure, DOCS / 'images' / 'few_frames.png')}")


if __name__ == "__main__":
    main()
