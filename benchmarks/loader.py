"""How many structures a second the loader makes ready, and where the time goes.

    python benchmarks/loader.py FILE_OR_FOLDER [--threads 1 2 4] [--cutoff 12] [--max-neighbors 20] [--json OUT]

The data are converted to shards first (as `denskit data convert` does).  CPU time is the robust figure on a machine
that does other things; wall time says what several threads bring on one that does not.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from denskit.batch import Batch
from denskit.data import DataConfig, read_file
from denskit.data.base import Source, collate
from denskit.data.convert import convert
from denskit.geometry.neighbors import build_neighbors
from denskit.models.equiformer import EquiformerConfig
from denskit.tasks import DeNSConfig, build_task
from denskit.training.loader import Loader, epoch_order, steps_per_epoch
from denskit.training.schedule import Schedule
from denskit.training.settings import TrainingConfig

BATCH = 8


def cpu_ms(work: Callable[[], object], count: int, repeats: int = 3) -> float:
    """Smallest CPU time of several repeats, in ms per structure."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return 1e3 * min(times) / count


def batches(source: Source, count: int) -> list[Batch]:
    """The first structures of an epoch, without edges."""
    order = epoch_order(0, 0, len(source), torch.arange(count).numpy())
    systems = [source[int(place)] for place in order]
    return [collate(systems[first : first + BATCH])[0] for first in range(0, count, BATCH)]


def loader_for(source: Source, cutoff: float, max_neighbors: int, threads: int) -> Loader:
    """What a training with DeNS would use."""
    training = TrainingConfig(batch_size=BATCH, epochs=1)
    return Loader(
        source=source, task=build_task(DeNSConfig(probability=0.5)), seed=0, batch_size=BATCH, accumulate=1,
        schedule=Schedule(training, steps_per_epoch(len(source), BATCH, True)), dtype=torch.float32, threads=threads,
        model=EquiformerConfig(cutoff=cutoff, max_neighbors=max_neighbors),
    )  # fmt: skip


def measure(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Times in ms per structure, and structures per second."""
    source, _ = read_file(folder)
    original, _ = read_file(args.data, DataConfig(missing="mask"))
    count, k, cutoff = min(args.structures, len(source)) // BATCH * BATCH, args.max_neighbors, args.cutoff
    ready = batches(source, count)
    order = epoch_order(0, 0, len(source), torch.arange(count).numpy())
    found = {
        "atoms_per_structure": sum(batch.num_atoms for batch in ready) / count,
        "read_shards_ms": cpu_ms(lambda: [source[int(place)] for place in order], count),
        "read_original_ms": cpu_ms(lambda: [original[int(place)] for place in order], count),
        "collate_ms": cpu_ms(lambda: batches(source, count), count),
        "neighbors_ms": cpu_ms(lambda: [build_neighbors(b, cutoff, max_neighbors=k) for b in ready], count),
        "neighbors_not_strict_ms": cpu_ms(
            lambda: [build_neighbors(b, cutoff, max_neighbors=k, strict=False) for b in ready], count
        ),
        "neighbors_all_ms": cpu_ms(lambda: [build_neighbors(b, cutoff) for b in ready], count),
    }
    steps = count // BATCH
    for threads in args.threads:
        loader = loader_for(source, cutoff, k, threads)
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in loader.prefetch(0, steps, 2 * threads):
            pass
        found[f"loader_{threads}_threads_cpu_ms"] = 1e3 * (time.process_time() - cpu) / count
        found[f"loader_{threads}_threads_structures_per_s"] = count / (time.perf_counter() - begin)
    return found


def main() -> None:
    """Convert, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--structures", type=int, default=512)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cutoff", type=float, default=12.0)
    parser.add_argument("--max-neighbors", type=int, default=20)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        begin = time.process_time()
        convert([args.data], Path(temporary) / "shards", DataConfig(missing="mask"))
        converted = time.process_time() - begin
        found = measure(args, Path(temporary) / "shards")
        found["convert_ms"] = 1e3 * converted / len(read_file(Path(temporary) / "shards")[0])
    found |= {"cpus": float(os.cpu_count() or 0), "load": os.getloadavg()[0]}
    for name, value in found.items():
        print(f"{name:40s} {value:10.3f}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
