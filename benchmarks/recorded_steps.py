"""Steps of real trainings on a GPU, recorded as CUDA graphs and not.

    python benchmarks/recorded_steps.py equiformer data.path=FILE [SETTING ...] [--steps 20] [--json FILE]

Prints milliseconds of a step (median) with one batch, of both in turn, and memory.  On a CPU nothing is recorded, and
both are the same.  Results: docs/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from denskit.data import load_data
from denskit.runtime.memory import peak_memory
from denskit.runtime.processes import join_processes
from denskit.training.forecast import settled
from denskit.training.load_config import load_config
from denskit.training.recorded import RecordedBackward
from denskit.training.trainer import Trainer

LENGTH = 100_000  # steps of the training that is begun, so that a warm-up fits
WARM_UPS = 3


def trainer_of(settings: list[str], *, recorded: bool) -> Trainer:
    """A training at its first step; nothing is written."""
    first, *rest = settings
    given = [*rest, f"training.cuda_graphs={recorded}", f"training.max_steps={LENGTH}", "output=recorded_steps"]
    config = load_config(first, given)
    group = join_processes(config.device)
    data = load_data(config.data, config.seed, config.required_labels)
    config, _ = settled(config, data, group, None, lambda line: None)
    return Trainer(config, data, group)


def milliseconds(trainer: Trainer) -> float:
    """Wall time of a step with the trainer's first batch."""
    trainer.step = 0
    work = trainer.loader.work(0)
    start = time.perf_counter()
    trainer.train_step(work)  # waits for the device: it reads the norm of the gradient
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="+")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    trainers = {name: trainer_of(arguments.settings, recorded=name == "recorded") for name in ("eager", "recorded")}
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(WARM_UPS + arguments.steps):
        for name, trainer in trainers.items():
            times[name].append(milliseconds(trainer))
    found = {f"{name}_ms": statistics.median(times[name][WARM_UPS:]) for name in trainers}
    found["first_recorded_step_s"] = times["recorded"][0] / 1000
    device = trainers["recorded"].group.device
    found["memory_MiB"] = peak_memory(device)
    backward = trainers["recorded"].backward
    shapes = list(backward.recordings) if isinstance(backward, RecordedBackward) else []
    print(f"{device}: {found['eager_ms']:.1f} ms a step, recorded {found['recorded_ms']:.1f} ms "
          f"({found['eager_ms'] / found['recorded_ms']:.1f} times as fast); {len(shapes)} shapes recorded; "
          f"first recorded step {found['first_recorded_step_s']:.1f} s; {found['memory_MiB']:.0f} MiB")  # fmt: skip
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found | {"settings": arguments.settings, "shapes": shapes}, indent=2))


if __name__ == "__main__":
    main()
