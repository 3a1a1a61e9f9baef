"""Energy and forces of one periodic system of 1,000 to 100,000 edges: time of an edge, neighbours, peak memory.

The systems are ethanol at the density of the liquid, atoms displaced at random.  Sizes and settings take turns, on one
thread, small systems several times a turn; what counts is the smallest processor time, for other processes only add to
it.  Memory is what the peak of a fresh process grows by in its first evaluation.  With --work train a step is forward,
forces, a loss of energies and forces, and its gradient.

    python benchmarks/scaling.py --keep --kernels plain,fused --json scaling.json --plot docs/images/scaling.png
    python benchmarks/scaling.py --keep --kernels plain,fused --work train --sizes 10 --chunks none,8192,blocks
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from ase.build import molecule

from denskit.batch import Batch
from denskit.models import ForceField, build_force_field
from denskit.models.equiformer import EquiformerConfig
from denskit.models.execution import Execution
from denskit.models.scaling import Scaling
from denskit.runtime.allocator import keep_freed_memory
from denskit.simulation.neighbor_list import Candidates
from denskit.simulation.structures import batch_of

CELL = 4.6  # Å, of one molecule
REPEATS = {1: (1, 1, 2), 3: (2, 2, 2), 10: (3, 3, 3), 30: (4, 4, 4), 100: (6, 6, 6)}  # by thousands of edges, about
SKIN = 0.5  # Å
SMALL = EquiformerConfig(
    num_layers=3, channels=(64, 32, 16), feature_channels=(128, 64, 32), head_channels=(16, 8, 4),
    ffn_channels=(128, 64, 32), envelope=True,
)  # fmt: skip


def build(kernels: str, work: str) -> ForceField:
    """Random weights."""
    torch.manual_seed(0)
    model = build_force_field(SMALL, heads={}, scaling=Scaling(elements=[1, 6, 8]))
    model.train(work == "train").requires_grad_(work == "train")
    model.execution = Execution(kernels=kernels)
    return model


def liquid(size: int) -> Batch:
    """A system of about ``size`` thousand edges, without them."""
    atoms = molecule("CH3CH2OH", cell=[CELL] * 3, pbc=True).repeat(REPEATS[size])
    atoms.rattle(0.05, seed=1)
    return batch_of([atoms]).to(dtype=torch.float32)


def seconds(work: Callable[[], object]) -> float:
    """Processor time."""
    start = time.process_time()
    work()
    return time.process_time() - start


def evaluate(model: ForceField, batch: Batch, setting: str) -> None:
    """Energy and forces; in training mode also the gradient of a loss."""
    chunk = int(setting) if setting.isdecimal() else None
    model.execution = replace(model.execution, edge_chunk=chunk, recompute=setting == "blocks")
    with torch.set_grad_enabled(model.training):
        found = model(batch, outputs=("energies", "forces"))
    if model.training:
        model.zero_grad()
        (found["energies"].sum() + found["forces"].square().sum()).backward()


def update(candidates: Candidates, batch: Batch) -> None:
    """What a step does between two searches: are the edges complete, and which are within the cutoff."""
    assert candidates.hold(batch)
    keep = candidates.within(candidates.squared_distances(batch.positions), SMALL.cutoff, None, True)
    candidates.batch.built_edges.index.index_select(1, keep.nonzero()[:, 0])


def label(kernels: str, setting: str) -> str:
    """Name of a setting."""
    if setting == "none":
        return kernels
    return f"{kernels}, " + ("blocks computed again" if setting == "blocks" else f"edge_chunk {setting}")


def times(sizes: list[int], chunks: list[str], kernels: list[str], work: str, turns: int) -> list[dict[str, object]]:
    """Microseconds an edge, each setting at each size in turn."""
    models = {kind: build(kind, work) for kind in kernels}
    batches = {size: SMALL.with_neighbors(liquid(size)) for size in sizes}
    candidates = {size: Candidates.find(batch, SMALL.cutoff, SKIN) for size, batch in batches.items()}
    found: dict[tuple[int, str], list[float]] = {}
    for turn in range(-1, turns):
        for size, batch in batches.items():
            works: dict[str, Callable[[], object]] = {
                label(kind, chunk): lambda m=model, c=chunk, b=batch: evaluate(m, b, c)
                for kind, model in models.items()
                for chunk in chunks
            }
            works["search"] = lambda b=batch: SMALL.with_neighbors(b)
            works["search with skin"] = lambda b=batch: Candidates.find(b, SMALL.cutoff, SKIN)
            works["update"] = lambda b=batch, c=candidates[size]: update(c, b)
            for what, step in [*works.items()] * max(1, 10 // size):
                spent = seconds(step)
                if turn >= 0:
                    found.setdefault((size, what), []).append(1e6 * spent / batch.num_edges)
    return [
        {"atoms": batches[size].num_atoms, "edges": batches[size].num_edges, "what": what,
         "min_us": min(values), "median_us": statistics.median(values)}
        for (size, what), values in found.items()
    ]  # fmt: skip


def peak() -> float:
    """MiB of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def memory(size: int, chunk: str, kernels: str, work: str) -> None:
    """Print the growth of the peak, MiB; called in a fresh process."""
    model, batch = build(kernels, work), SMALL.with_neighbors(liquid(size))
    evaluate(model, SMALL.with_neighbors(liquid(min(REPEATS))), chunk)  # libraries and compiled kernels
    before = peak()
    evaluate(model, batch, chunk)
    print(json.dumps({"edges": batch.num_edges, "what": label(kernels, chunk), "MiB": peak() - before}))


def memories(sizes: list[int], chunks: list[str], kernels: list[str], shared: list[str]) -> list[dict[str, object]]:
    """Peaks of fresh processes, which are given the shared options too."""
    rows = []
    larger = [size for size in sizes if size > min(REPEATS)]  # than the one that warms up
    for size, kind, chunk in itertools.product(larger, kernels, chunks):
        command = [sys.executable, __file__, "--memory", str(size), chunk, "--kernels", kind, *shared]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return rows


def plot(document: dict[str, list[dict[str, object]]], path: Path) -> None:
    """Time of an edge, of its neighbour search, and memory against edges; chunks dashed."""
    from denskit.analysis.plots import COLOURS, legends, plain_ticks, row_of_axes, save_figure, series_style

    figure, (left, middle, right) = row_of_axes(3, width=4.0)
    searches = ("search", "search with skin", "update")
    for rows, axes, y, ours in (
        (document["times"], left, "min_us", False),
        (document["times"], middle, "min_us", True),
        (document["memory"], right, "MiB", False),
    ):
        names = [what for what in dict.fromkeys(row["what"] for row in rows) if (what in searches) == ours]
        kinds = list(dict.fromkeys(what.partition(",")[0] for what in names))  # of one colour, with and without chunks
        for what in names:
            chosen = [row for row in rows if row["what"] == what]
            kind, _, setting = what.partition(",")
            style = series_style(kinds.index(kind) + (len(COLOURS) if setting else 0), points=True)
            x, values = ([row[key] for row in chosen] for key in ("edges", y))
            axes.loglog(x, values, label=what, markersize=4, fillstyle="none" if setting else "full", **style)
        axes.set_xlabel("edges")
        for axis in (axes.xaxis, axes.yaxis):
            plain_ticks(axis)
    low, high = left.get_ylim()
    left.set(ylabel="energy and forces (µs an edge, one thread)", ylim=(low, 1.6 * high))  # room for the legend
    middle.set(ylabel="neighbours (µs an edge, one thread)")
    right.set(ylabel="growth of the peak memory (MiB)")
    legends(figure, [left, middle, right])
    save_figure(figure, path)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,3,10,30,100", help="thousands of edges, some of these")
    parser.add_argument("--chunks", default="none,8192", help="none, values of edge_chunk, blocks (checkpointing)")
    parser.add_argument("--work", choices=["forces", "train"], default="forces")
    parser.add_argument("--kernels", default="plain", help="plain, fused or plain,fused")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="keep freed memory, as the denskit command does")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.keep:
        assert keep_freed_memory()
    if options.memory:
        size, chunk = options.memory
        memory(int(size), chunk, options.kernels, options.work)
        return
    sizes = [int(size) for size in options.sizes.split(",")]
    if unknown := set(sizes) - set(REPEATS):
        parser.error(f"--sizes: {sorted(unknown)} are none of {list(REPEATS)}")
    chunks, kernels = options.chunks.split(","), options.kernels.split(",")
    shared = ["--work", options.work, *(["--keep"] if options.keep else [])]
    load = os.getloadavg()
    document = {
        "torch": torch.__version__, "keep": options.keep, "work": options.work, "load_before": load,
        "times": times(sizes, chunks, kernels, options.work, options.turns),
        "memory": memories(sizes, chunks, kernels, shared), "load_after": os.getloadavg(),
    }  # fmt: skip
    for row in [*document["times"], *document["memory"]]:
        print(json.dumps(row))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.plot:
        plot(document, options.plot)


if __name__ == "__main__":
    main()
