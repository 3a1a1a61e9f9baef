"""What ``python -m denskit_bench`` shows: progress while it measures, then one table a record."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


class BenchProgress:
    """One line on standard error that says what is going on; called with a text, turns done and turns in all."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("starting", total=None)

    def __enter__(self) -> BenchProgress:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say it."""
        self._progress.update(self._task, description=what, completed=done, total=total or None)


def check_writable(*files: Path | None) -> None:
    """Raise ValueError for a file that exists, or whose folder is not there, before anything is measured."""
    from denskit.files import new_file

    for file in files:
        if file is not None and not file.parent.is_dir():
            raise ValueError(f"{file}: there is no folder {file.parent}; make it first")
        if file is not None:
            new_file(file)


def write(data: dict[str, Any], file: Path | None) -> None:
    """Write a record where one is wanted."""
    if file is not None:
        file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def show(data: dict[str, Any]) -> None:
    """Print a record: machine, table, ratio, and whether the opponent counts."""
    console = Console(soft_wrap=True, highlight=False)
    machine, job = data["machine"], data["job"]
    console.print(
        f"{machine['cpu']}, {machine['device']}, {data['threads']} of {machine['cpus']} CPUs, load {data['load']:.1f} "
        f"before; torch {machine['packages']['torch']}; matmul {machine['matmul_gflops']:.0f} GFLOP/s, "
        f"copy {machine['copy_gb_per_s']:.1f} GB/s",
        markup=False,
    )
    sides = [data["sides"][side] for side in ("theirs", "ours") if side in data["sides"]]
    sizes = ", ".join(f"{data[name]:,.0f} {name}" for name in ("atoms", "edges") if name in data)
    extra = "" if job["work"] in ("neighbors", "loader", "md", "dens") else f", DeNS {'on' if job['dens'] else 'off'}"
    title = f"{job['work']}, {job['model']}, {job['system']} x {job['batch']} ({sizes}){extra}"
    table = Table("median of a step (min)", *(side["name"] for side in sides), title=title, title_justify="left")
    for name, *cells in zip(ROWS, *map(_cells, sides), strict=True):
        if any(cell != NOTHING for cell in cells):
            table.add_row(name, *cells)
    console.print(table)
    for name in ("cpu_ms_per_structure", "structures_per_s_by_threads"):
        if name in data:
            parts = ", ".join(f"{part} {value:.3g}" for part, value in data[name].items())
            console.print(f"{name.replace('_', ' ')}: {parts}", markup=False)
    for line in _verdict(data):
        console.print(line, markup=False)


ROWS = (
    "CPU time, s", "wall time, s", "device time, s", "first step, s", "matmul GFLOP", "traffic GB",
    "of the ceilings: matmul, copy", "peak memory, MB", "parameters", "kernels",
)  # fmt: skip
NOTHING = "-"


def _cells(side: dict[str, Any]) -> list[str]:
    times, counted, share, memory = side["times"], side["counted"], side["share_of_ceiling"], side["memory"]
    return [
        *(_times(times[clock]) if clock in times else NOTHING for clock in ("cpu", "wall", "device")),
        f"{side['first_step_s']:.4g}",
        f"{counted['matmul_gflop']:.4g}" if counted else NOTHING,
        f"{counted['traffic_gb']:.4g}" if counted else NOTHING,
        f"{100 * share['matmul']:.0f}%, {100 * share['copy']:.0f}%" if share else NOTHING,
        f"{memory['process_mb']:.0f}, {memory['steps_mb']:.0f} by steps" if memory else NOTHING,
        f"{side['parameters']:,}" if side["parameters"] is not None else NOTHING,
        side["kernels"] or NOTHING,
    ]


def _times(values: list[float]) -> str:
    return f"{statistics.median(values):.4g} ({min(values):.4g})"


def _verdict(data: dict[str, Any]) -> list[str]:
    lines, ratios, fairness = [], data["ratios"], data["fairness"]
    if "compile_s" in data:
        lines.append(f"compiled before the first step: {data['compile_s']:.3g} s")
    if data["agreement"]:
        lines.append("agreement: " + ", ".join(f"{name} {value:.1e}" for name, value in data["agreement"].items()))
    if data["ratio"] is not None:
        line = f"{data['ratio_of']}: {data['ratio']:.3g}"
        if "lower_quartile" in ratios:
            line += f" (quartiles {ratios['lower_quartile']:.3g}, {ratios['upper_quartile']:.3g})"
        memory = f"; memory {ratios['memory_process']:.2f}" if "memory_process" in ratios else ""
        lines.append(f"{line}{memory}")
    if data["job"]["work"] == "dens":
        more = {name: data["sides"][side]["parameters"] for name, side in (("with", "ours"), ("without", "theirs"))}
        line = f"DeNS costs {100 * (data['ratio'] - 1):+.1f} % time"
        line += f", {100 * (more['with'] / more['without'] - 1):+.2f} % parameters"
        paper = data["paper_percent"]
        lines.append(line + (f"; paper: {paper:+.1f} % time" if paper is not None else ""))
    if fairness:
        lines.append(
            f"opponent {fairness['opponent_over_scaled']:.2f} times the published code scaled to this machine "
            f"({fairness['scaled_s']:.3g} s): the ratio {'counts' if data['valid'] else 'is void (more than 1.1)'}"
        )
    return lines
