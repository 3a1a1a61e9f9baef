"""Records of ``python -m denskit_bench`` (JSON) as a Markdown table and plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from denskit.analysis.plots import legends, row_of_axes, save_figure, series_style, whole_ticks
from denskit.reading.documents import read_json

COLUMNS = (
    "work", "model", "system", "DeNS", "threads", "load", "opponent, s (min)", "Denskit, s (min)", "ratio (quartiles)",
    "counts", "of the ceilings: matmul, copy", "memory, MB", "commit",
)  # fmt: skip
LABELS = {
    "atoms": "atoms in a periodic cell",
    "edges": "edges (by the cutoff)",
    "l_max": "highest degree $L_\\mathrm{max}$",
    "batch": "structures in a batch",
}
WORK = {
    "train": "training step",
    "energy_forces": "energies and forces",
    "md": "step of dynamics",
    "loader": "reading of a batch",
    "neighbors": "neighbour search",
    "dens": "training step with DeNS",
}
STYLES = {"ours": series_style(0, points=True), "theirs": {**series_style(2, points=True), "linestyle": "--"}}
NONE = "-"


def read_record(file: Path) -> dict[str, Any]:
    """A JSON file of ``python -m denskit_bench``.  Raises ValueError for another file, FileNotFoundError."""
    data = read_json(file)
    if not isinstance(data, dict) or "ratio" not in data or "job" not in data:
        raise ValueError(f"{file}: no record of a benchmark; give files that a benchmark wrote with --json")
    return data


def write_report(files: Sequence[Path], output: Path) -> list[Path]:
    """Write ``benchmarks.md`` and a plot of each scaling into a folder; the paths of all."""
    records = {file: read_record(file) for file in files}
    output.mkdir(parents=True, exist_ok=True)
    single, plots, scalings = [], [], []
    for file, data in records.items():
        if "records" in data:
            plots.append(plot_scaling(data, output / f"{file.stem}.png"))
            scalings.append(f"![{data['ratio_of']}: {data['ratio']:.2f}]({file.stem}.png)")
            single += data["records"]
        else:
            single.append(data)
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS)), *map(row, single)]
    machines = {_machine(data): None for data in single}
    text = "\n".join(["# Benchmarks", "", *machines, "", *lines, "", *scalings]).rstrip() + "\n"
    table = output / "benchmarks.md"
    table.write_text(text, encoding="utf-8")
    return [table, *plots]


def row(data: dict[str, Any]) -> str:
    """One line of the table, by the robust clock of its record."""
    job, sides, ratios = data["job"], data["sides"], data["ratios"]
    ours, theirs = sides["ours"], sides.get("theirs")
    faster = NONE if data["ratio"] is None else f"**{data['ratio']:.2f}**"
    if "lower_quartile" in ratios:
        faster += f" ({ratios['lower_quartile']:.2f} to {ratios['upper_quartile']:.2f})"
    if data["paper_percent"] is not None:
        faster += f", paper {1 + data['paper_percent'] / 100:.3f}"
    cells = [
        job["work"],
        job["model"],
        f"{job['system']} x {job['batch']}",
        {"dens": "both"}.get(job["work"], "on" if job["dens"] else "off"),
        str(data["threads"]),
        f"{data['load']:.1f}",
        f"{theirs['name']}: {_times(theirs)}" if theirs else NONE,
        f"{ours['name']}: {_times(ours)}",
        faster,
        {None: NONE, True: "yes", False: "**no**"}[data["valid"]],
        _both(theirs, ours, _shares),
        _both(theirs, ours, _memory),
        data["commit"][:12] + ("+" if data["commit"].endswith("+changes") else ""),
    ]
    return _line(cells)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _machine(data: dict[str, Any]) -> str:
    machine = data["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return f"- {machine['cpu']} ({machine['cpus']} CPUs), {machine['device']}; {versions}"


def _both(theirs: dict[str, Any] | None, ours: dict[str, Any], cell: Callable[[dict[str, Any]], str]) -> str:
    cells = [cell(side) for side in (theirs, ours) if side]
    return NONE if set(cells) == {NONE} else " to ".join(cells)


def _times(side: dict[str, Any]) -> str:
    return f"{side['median_s']:.4g} ({side['min_s']:.4g})"


def _shares(side: dict[str, Any]) -> str:
    share = side["share_of_ceiling"]
    return f"{100 * share['matmul']:.0f}%, {100 * share['copy']:.0f}%" if share else NONE


def _memory(side: dict[str, Any]) -> str:
    return f"{side['memory']['process_mb']:.0f}" if side["memory"] else NONE


def scaling_figure(data: dict[str, Any]) -> Figure:
    """Median milliseconds, also of a unit where there is one, against the size; every side of the contests."""
    over, unit, records = data["over"], data["cost_per"], data["records"]
    sizes = [record.get(over, value) for record, value in zip(records, data["values"], strict=True)]
    panels = [None, unit] if unit else [None]
    title = f"{WORK[data['job']['work']]}, {data['job']['model']}: medians"
    figure, row = row_of_axes(len(panels), width=4.6, title=title)
    for axes, per in zip(row, panels, strict=True):
        for side, style in STYLES.items():
            if side not in records[0]["sides"]:
                continue
            costs = [1e3 * record["sides"][side]["median_s"] / (record[per] if per else 1) for record in records]
            axes.plot(sizes, costs, label=records[0]["sides"][side]["name"], **style)
        axes.set(xlabel=LABELS[over], ylabel=f"time of one {per.removesuffix('s')} (ms)" if per else "time (ms)")
        axes.set(ylim=(0, 1.05 * axes.get_ylim()[1]))  # room above the first point
        if over == "l_max":
            axes.set(xlim=(min(sizes) - 0.5, max(sizes) + 0.5))
        else:
            axes.set(xlim=(0, None))
        whole_ticks(axes.xaxis)
    legends(figure, row)
    return figure


def plot_scaling(data: dict[str, Any], output: Path) -> Path:
    """Write :func:`scaling_figure` as PNG; returns its path."""
    return save_figure(scaling_figure(data), output)
