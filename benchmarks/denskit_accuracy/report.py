"""What came out: a table, and learning curves against processor time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from denskit.analysis.plots import legends, plain_ticks, row_of_axes, save_figure, series_style
from denskit.files import write_json
from denskit_accuracy.frames import SETS
from denskit_accuracy.programs import PROGRAMS

ERRORS = {  # key: title of its column
    "forces_mae_meV_per_A": "force MAE (meV/Å)",
    "energy_mae_meV": "energy MAE (meV)",
    "stress_mae_meV_per_A3": "stress MAE (meV/Å³)",
}
FIRST = ("denskit", "denskit-dens")  # in the colours that they have in other pictures
HEADER = ("minutes", "start-up (s)", "length", "version")


def results_in(folder: Path) -> list[dict[str, Any]]:
    """All results of a folder, by set, budget and program.  Raises ValueError where there are none."""
    results = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("runs/*/result.json")]
    if not results:
        raise ValueError(f"{folder}/runs has no finished training; begin with: run {folder}")
    sets, programs = list(SETS), list(PROGRAMS)
    return sorted(results, key=lambda one: (sets.index(one["set"]), one["minutes"], programs.index(one["program"])))


def table(results: Sequence[dict[str, Any]]) -> str:
    """A Markdown table for each set and budget, the smallest errors in bold."""
    parts = []
    for (name, minutes), found in groupby(results, key=lambda one: (one["set"], one["minutes"])):
        rows = list(found)
        best = {key: min(row[key] for row in rows) for key in ERRORS if key in rows[0]}
        header = ("program", *(ERRORS[key] for key in best), *HEADER)
        lines = [f"{name}, {minutes:g} minutes", "", *_line(header), "|" + "---|" * len(header)]
        for row in rows:
            errors = [_bold(row[key], row[key] == best[key]) for key in best]
            rest = (f"{row['used_minutes']:.1f}", f"{row['start_seconds']:.0f}", f"{row['length']} {row['unit']}s")
            lines += _line((row["program"], *errors, *rest, row["version"]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def figure(results: Sequence[dict[str, Any]]) -> Figure:
    """Validation force MAE against minutes, a panel a set and a colour a program; large: of the test frames."""
    names = list(dict.fromkeys(row["set"] for row in results))
    drawing, row_of = row_of_axes(len(names), width=4.4, title="Force MAE against processor time of one thread")
    places = {program: place for place, program in enumerate(dict.fromkeys((*FIRST, *PROGRAMS)))}
    for axes, name in zip(row_of, names, strict=True):
        for program in PROGRAMS:
            rows = [row for row in results if row["set"] == name and row["program"] == program]
            if not rows:
                continue
            style = series_style(places[program], points=True)
            for row in rows:
                minutes, errors = zip(*row["curve"], strict=True)
                axes.plot(minutes, errors, linewidth=1, markersize=2, **style)
            used, tested = ([row[key] for row in rows] for key in ("used_minutes", "forces_mae_meV_per_A"))
            axes.plot(used, tested, markersize=8, markeredgecolor="white", **{**style, "linestyle": "none"})
            axes.plot([], [], label=program, **style)
        axes.plot([], [], "o-", color="0.5", linewidth=1, markersize=2, label="line: validation structures")
        axes.plot([], [], "o", color="0.5", markersize=8, markeredgecolor="white", label="large: test structures")
        axes.set(title=name, xlabel="processor time (minutes)", ylabel="force MAE (meV/Å)", xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            plain_ticks(axis)
    legends(drawing, row_of)
    return drawing


def write_report(folder: Path) -> str:
    """Write table.md, results.json and curves.png into a folder; returns the table."""
    results = results_in(folder)
    text = table(results)
    (folder / "table.md").write_text(text, encoding="utf-8")
    write_json(folder / "results.json", results)
    save_figure(figure(results), folder / "curves.png")
    return text


def _line(cells: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(cells) + " |"]


def _bold(value: float, best: bool) -> str:
    text = f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return f"**{text}**" if best else text
