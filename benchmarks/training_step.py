"""How long a training step takes, eager and as other settings of training.step make it.

    python benchmarks/training_step.py demo --modes traced [--turns 15] [--json FILE] [SETTING=VALUE ...]

The preset's model on the molecules that ship with Denskit, real steps of the trainer (order, corruption, neighbours of
dense edges, both backward passes, optimizer), in turn, on one thread.  Also: the operations that PyTorch dispatches in
a step, and how long the first step took, in which graphs are made.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from denskit.data import load_data
from denskit.training.config import load_config
from denskit.training.distributed import join_processes
from denskit.training.trainer import Trainer


class Count(TorchDispatchMode):
    """Counts operations."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one and do it."""
        self.number += 1
        return func(*args, **(kwargs or {}))


def trainer_of(preset: str, settings: list[str], mode: str) -> Trainer:
    """A training at its first step."""
    shipped = ["data.name=embedded", "data.molecule=ethanol", "data.split={mode: random, train: 200, valid: 50}"]
    given = [f"training.step={mode}", "device=cpu", f"output={tempfile.gettempdir()}/unused"]
    config = load_config(preset, [*shipped, *settings, *given])
    return Trainer(config, load_data(config.data, config.seed), join_processes("cpu"))


def step(trainer: Trainer) -> tuple[float, float]:
    """Wall and processor time of one step, without making its batch."""
    work = trainer.loader.work(trainer.step)
    wall, cpu = time.perf_counter(), time.process_time()
    trainer.train_step(work)
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--modes", nargs="+", default=["traced"])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    modes = ["eager", *arguments.modes]
    trainers = {mode: trainer_of(arguments.preset, arguments.settings, mode) for mode in modes}
    found: dict[str, dict[str, Any]] = {mode: {"first_s": step(trainers[mode])[0]} for mode in modes}
    times: dict[str, list[tuple[float, float]]] = {mode: [] for mode in modes}
    for turn in range(arguments.turns + 2):
        for mode in modes:
            took = step(trainers[mode])
            if turn > 1:
                times[mode].append(took)
    for mode in modes:
        with Count() as count:
            trainers[mode].train_step(trainers[mode].loader.work(trainers[mode].step))
        wall, cpu = ([pair[number] for pair in times[mode]] for number in (0, 1))
        found[mode] |= {
            "operations": count.number,
            "cpu_median_s": statistics.median(cpu),
            "cpu_min_s": min(cpu),
            "wall_median_s": statistics.median(wall),
            "wall_min_s": min(wall),
        }
        print(mode, *(f"{name} {value:.4g}" for name, value in found[mode].items()), sep="  ")
    print(f"load {os.getloadavg()[0]:.1f}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"preset": arguments.preset, "load": os.getloadavg()[0], **found}, indent=1)
        )


if __name__ == "__main__":
    main()
