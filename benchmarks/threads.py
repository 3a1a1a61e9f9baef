"""One thread, several threads, several processes: time of evaluations and of trainings on a CPU.

    python benchmarks/threads.py [--threads 2] [--only liquid] [--turns 3] [--spins 300000]

Evaluations are calls of a potential in one process, with one thread and with all in turn.  Trainings are runs of
``denskit train`` (preset ``equiformer``, DeNS) on rattled copies with invented labels; a turn runs each way once, and
a way's time is the median of what its logs say after the first 10 steps.  Tables in Markdown, milliseconds of wall
time: the machine must be idle.  ``--spins`` is GOMP_SPINCOUNT, to see what the program's own choice gains.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

EVALUATED = [("ethanol", n) for n in (1, 8, 16, 32, 64, 128)] + [("liquid-576", 1)]
TRAINED = [("ethanol", 8), ("ethanol", 16), ("ethanol", 32), ("aspirin", 8), ("liquid-200", 1), ("liquid-200", 2)]
LOGGED, FIRST = 5, 10  # steps between lines of a training's log; steps that load kernels


def main() -> None:
    """Print both tables; with ``--job``, do what a process of its own is for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="systems whose names contain this")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--spins", type=int, help="GOMP_SPINCOUNT; default: what the denskit command sets")
    parser.add_argument("--job", help=argparse.SUPPRESS)  # of a process of its own
    asked = parser.parse_args()
    if asked.job:
        print(json.dumps(_evaluations(**json.loads(asked.job))))
        return
    if asked.spins is not None:
        os.environ["GOMP_SPINCOUNT"] = str(asked.spins)
    many = asked.threads
    print(f"| evaluation | edges | 1 thread | {many} threads | gain |\n|---|---|---|---|---|")
    for system, copies in EVALUATED:
        if asked.only in system:
            found = _in_a_process({"system": system, "copies": copies, "threads": many, "turns": 8 * asked.turns})
            one, more = found["one"], found["more"]
            print(f"| {copies} {system} | {found['edges']:,} | {one:.1f} | {more:.1f} | {one / more:.2f} |", flush=True)
    print(f"\n| training | 1 thread | {many} threads | {many} processes | gain of threads, processes |")
    print("|---|---|---|---|---|")
    for system, copies in TRAINED:
        if asked.only in system:
            one, more, divided = _trainings(system, copies, many, asked.turns)
            gains = f"{one / more:.2f}, {one / divided:.2f}" if copies > 1 else f"{one / more:.2f}"
            last = f"{divided:.0f}" if copies > 1 else "-"
            print(f"| {copies} {system} | {one:.0f} | {more:.0f} | {last} | {gains} |", flush=True)


def _in_a_process(job: dict[str, Any]) -> dict[str, Any]:
    environment = os.environ | {"OMP_NUM_THREADS": str(job["threads"])}  # it decides alone
    command = [sys.executable, __file__, "--job", json.dumps(job)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    return json.loads(answer.splitlines()[-1])


def _evaluations(system: str, copies: int, threads: int, turns: int) -> dict[str, Any]:
    """Median milliseconds of energies and forces, with one thread and with several in turn."""
    from denskit.runtime.allocator import keep_freed_memory
    from denskit.runtime.openmp import wait_briefly

    keep_freed_memory()
    wait_briefly()
    import torch

    from denskit.simulation.potential import Potential
    from denskit.simulation.structures import batch_of
    from denskit_bench.systems import structures

    potential, batch = Potential("zoo:ethanol-xtb"), batch_of(structures(system, copies))
    times: dict[int, list[float]] = {1: [], threads: []}
    for turn in range(turns + 2):
        for number, found in times.items():
            torch.set_num_threads(number)
            begin = time.perf_counter()
            potential(batch)
            if turn >= 2:  # the first calls load kernels
                found.append(1000 * (time.perf_counter() - begin))
    one, more = (statistics.median(found) for found in times.values())
    return {"edges": potential.num_edges, "one": one, "more": more}


def _trainings(system: str, copies: int, many: int, turns: int) -> list[float]:
    """Median milliseconds of a training step: one thread, several, several processes of one thread each."""
    ways = [("1", 1), (str(many), 1), ("1", many)][: 3 if copies > 1 else 2]  # threads, processes
    found: list[list[float]] = [[] for _ in ways]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.extxyz")
        _write(data, system)
        for turn in range(turns):
            for (threads, processes), times in zip(ways, found, strict=True):
                times += _step_times(data, Path(folder, f"{turn}-{threads}-{processes}"), copies, threads, processes)
    medians = [statistics.median(times) for times in found]
    return [*medians, medians[0]][:3]


def _step_times(data: Path, run: Path, copies: int, threads: str, processes: int) -> list[float]:
    settings = [f"data.path={data}", "data.split.train=32", "data.split.valid=1", "data.split.test=1", "task=dens"]
    settings += [f"training.batch_size={copies}", "training.max_steps=30", f"training.log_every={LOGGED}"]
    subprocess.run(
        [sys.executable, "-m", "denskit", "train", "equiformer", *settings, f"output={run}", "device=cpu"]
        + (["--processes", str(processes)] if processes > 1 else []),
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": threads},
    )  # fmt: skip
    with open(run / "metrics.csv") as file:
        return [float(row["step_ms"]) for row in csv.DictReader(file) if int(row["step"]) > FIRST and row["step_ms"]]


def _write(path: Path, system: str) -> None:
    """34 rattled copies with small random forces."""
    import ase.io
    import numpy as np
    from ase.calculators.singlepoint import SinglePointCalculator

    from denskit_bench.systems import structures

    frames, generator = structures(system, 34), np.random.default_rng(0)
    for atoms in frames:
        forces = generator.normal(size=(len(atoms), 3))
        atoms.calc = SinglePointCalculator(atoms, energy=float(generator.normal()), forces=forces)
    ase.io.write(path, frames)


if __name__ == "__main__":
    main()
