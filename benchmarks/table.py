"""Print results of `denskit bench ... --json` as the Markdown table of docs/performance.md.

Usage: python benchmarks/table.py FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

COLUMNS = (
    "work", "model", "batch", "DeNS", "threads", "e3nn, s (min)", "Denskit, s (min)", "faster (quartiles)",
    "of the matmul ceiling", "memory, GB",
)  # fmt: skip


def row(file: Path) -> str:
    """One line of the table: processor time for one thread, wall time for more."""
    data = json.loads(file.read_text())
    contest, threads, ratios = data["contest"], data["machine"]["threads"], data["ratios"]
    clock = "cpu" if threads == 1 else "wall"

    def times(side: str) -> str:
        summary = data[side]["summary"]
        return f"{summary[f'{clock}_median_s']:.3f} ({summary[f'{clock}_min_s']:.3f})"

    faster = f"**{ratios[f'{clock}_median']:.2f}**"
    if clock == "cpu" and "cpu_lower_quartile" in ratios:
        faster += f" ({ratios['cpu_lower_quartile']:.2f} to {ratios['cpu_upper_quartile']:.2f})"
    memory = "-"
    if data["ours"]["memory"]:
        theirs, ours = (data[side]["memory"]["process_mb"] / 1000 for side in ("theirs", "ours"))
        memory = f"{theirs:.2f} to {ours:.2f}: {ratios['memory_process']:.2f}"
    shares = " to ".join(
        f"{100 * data[side]['summary']['share_of_matmul_ceiling']:.0f}%" for side in ("theirs", "ours")
    )
    cells = [
        contest["work"],
        contest["model"],
        f"{contest['system']} x {contest['batch']}",
        "on" if contest["dens"] else "off",
        str(threads),
        times("theirs"),
        times("ours"),
        faster,
        shares,
        memory,
    ]
    return _line(cells)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main(folder: Path) -> None:
    """Print the header and one line per file."""
    print(_line(COLUMNS))
    print(_line(["---"] * len(COLUMNS)))
    for file in sorted(folder.glob("*.json")):
        print(row(file))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
