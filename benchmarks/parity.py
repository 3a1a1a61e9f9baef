"""What `model.parity` costs and does: time of training steps without and with it, and energies of mirror images.

    python benchmarks/parity.py rmd17_ethanol_a.extxyz --model runs/mine --unseen rmd17_ethanol_b.extxyz

Steps of the preset `equiformer` on 50 structures of the file, batches of 4, one thread, in turn; processor time.  With
``--model`` the mean differences of energies and forces between structures and their mirror images.
"""

from __future__ import annotations

import argparse
import statistics
import time

import ase.io
import numpy as np
import torch

from denskit import load_model, predict
from denskit.data import load_data
from denskit.runtime.processes import join_processes
from denskit.training.forecast import settled
from denskit.training.load_config import load_config
from denskit.training.trainer import Trainer

WARM_UP, STEPS, MIRRORED = 3, 20, 60


def trainer_of(file: str, task: str, parity: bool) -> Trainer:
    """A training at its beginning; nothing is written."""
    settings = {
        "data.path": file, "data.split": {"train": 50, "valid": 50}, "training.batch_size": 4, "task": task,
        "training.max_steps": 12_000, "model.parity": parity, "output": "unused", "device": "cpu",
    }  # fmt: skip
    config, group = load_config("equiformer", settings), join_processes("cpu")
    data = load_data(config.data, config.seed, config.required_labels)
    config, _ = settled(config, data, group, None, lambda line: None)
    return Trainer(config, data, group)


def times(file: str, task: str) -> dict[bool, float]:
    """Median processor time (s) of a step, without and with parity."""
    trainers = {parity: trainer_of(file, task, parity) for parity in (False, True)}
    found: dict[bool, list[float]] = {parity: [] for parity in trainers}
    for step in range(WARM_UP + STEPS):
        for parity, trainer in trainers.items():
            work, begin = trainer.loader.work(step), time.process_time()
            trainer.train_step(work)
            found[parity].append(time.process_time() - begin)
    return {parity: statistics.median(seconds[WARM_UP:]) for parity, seconds in found.items()}


def mirrored(model: str, file: str) -> str:
    """Differences between structures of a file and their mirror images, in words."""
    frames = ase.io.read(file, f":{MIRRORED}")
    images = [atoms.copy() for atoms in frames]
    for atoms in images:
        atoms.positions[:, 2] *= -1
    force_field = load_model(model, dtype="float64")
    one, other = (predict(force_field, given) for given in (frames, images))
    energies = 1000 * np.abs(one.energy - other.energy)
    turned = [forces * [1, 1, -1] for forces in other.forces]
    forces = np.mean([1000 * np.abs(a - b).mean() for a, b in zip(one.forces, turned, strict=True)])
    return f"energies {energies.mean():.2g} meV (at most {energies.max():.2g}), forces {forces:.2g} meV/Å"


def main() -> None:
    """Print the times, and the differences where a model is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--model")
    parser.add_argument("--unseen", help="structures to mirror; default: the file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for task in ("energy_forces", "dens"):
        without, parity = times(given.file, task).values()
        print(f"{task}: {1000 * without:.1f} ms a step without parity, {1000 * parity:.1f} with it")
    if given.model:
        print(f"mirror images of {given.model}: {mirrored(given.model, given.unseen or given.file)}")


if __name__ == "__main__":
    main()
