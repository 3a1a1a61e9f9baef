"""Three rounds of active learning on ethanol, beside the same number of random frames.

    python examples/active_learning.py --output runs/active

Each round: a committee simulates ethanol at 800 K, frames on which it disagrees are chosen and labelled with GFN2-xTB,
and the committee continues its training with them.  A second committee gets random frames of the same simulations,
none of them exploded either.
Writes errors.json and errors.png.  Some minutes on two cores; needs the xtb extra (pip install 'denskit[xtb]').
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import ase.io
import numpy as np

import denskit

ETHANOL = Path(denskit.__file__).parent / "data/embedded/ethanol.npz"
START, NEW, MEMBERS = 20, 20, 3
MD = {"temperature": 800.0, "ensemble": "langevin", "friction": 0.02, "timestep": 0.5}
REPLICAS = 5
MOST_SPREAD = 0.4  # eV/Å; beyond it the simulations are several eV off, and their frames teach nothing about ethanol


def train_member(job: tuple[str, list[str]]) -> None:
    """Train one model, in a process of its own."""
    import torch

    from denskit import load_config, train

    torch.set_num_threads(1)
    output, settings = job
    if not (Path(output) / "model.safetensors").is_file():
        train(load_config("demo", [*settings, f"output={output}"]), resume=True)


def train_committee(folder: Path, data: Path, before: list[Path], given: argparse.Namespace) -> list[Path]:
    """Models that differ in the seed, from random weights or from those of the last round."""
    jobs, runs = [], []
    for seed in range(MEMBERS):
        settings = [
            "data.name=file", f"data.train={data}", f"data.valid={given.output / 'valid.extxyz'}", f"seed={seed}",
            f"training.max_steps={given.steps}", "training.evaluate_every=1000 steps", "training.final=last",
            "training.log_every=50",
        ]  # fmt: skip
        if before:
            settings += [f"training.init_from={before[seed]}", "training.lr=1e-3"]
        runs.append(folder / f"member_{seed}")
        jobs.append((str(runs[-1]), settings))
    with ProcessPoolExecutor(given.processes, get_context("spawn")) as pool:
        list(pool.map(train_member, jobs))
    return runs


def simulate(folder: Path, runs: list[Path], start: list[ase.Atoms], steps: int) -> list[ase.Atoms]:
    """Frames of short simulations with the committee, 10 fs apart."""
    from denskit import Potential, dynamics
    from denskit.active.frames import read_frames
    from denskit.simulation.dynamics import DynamicsSettings
    from denskit.simulation.dynamics.folder import DynamicsPlan

    if not (folder / "summary.json").is_file():
        plan = DynamicsPlan(settings=DynamicsSettings(**MD), steps=steps, folder=folder, frame_every=20)
        outcome = dynamics(Potential([run / "model.safetensors" for run in runs]), start, plan, resume=True)
        for failure in outcome.failures:
            print(failure)
    return read_frames(folder)


def labelled(frames: list[ase.Atoms], path: Path) -> Path:
    """The frames with energies and forces of GFN2-xTB, as a file."""
    from denskit.active import label

    if not path.is_file():
        label(frames, path)
    return path


def joined(old: Path, new: Path, path: Path) -> Path:
    """The frames of two files in one."""
    ase.io.write(path, [*ase.io.read(old, index=":"), *ase.io.read(new, index=":")])
    return path


def errors(runs: list[Path], data: Path, tests: dict[str, Path]) -> dict[str, float]:
    """Number of labels, and mean over the models of the force errors, meV/Å."""
    from denskit import evaluate

    found = {name: [evaluate(run, file)["forces_mae_meV_per_A"] for run in runs] for name, file in tests.items()}
    means = {name: float(np.mean(values)) for name, values in found.items()}
    return {"labels": len(ase.io.read(data, index=":")), **means}


def test_sets(folder: Path) -> dict[str, Path]:
    """Labelled frames that no training sees: the end of the embedded simulation at 500 K, and a new one at 1,000 K."""
    from denskit.active.frames import read_frames
    from denskit.data.datasets.generate import generate, write

    frames = read_frames(ETHANOL)
    tests = {"500 K": labelled(frames[-300::3], folder / "test_500K.extxyz")}
    hot = tests["1000 K"] = folder / "test_1000K.extxyz"
    if not hot.is_file():
        write(generate("ethanol", frames=100, temperature=1000.0, every=20.0, seed=5), hot, name="ethanol")
    labelled(frames[1300:1320], folder / "valid.extxyz")
    return tests


def plot(history: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Errors over the number of labels, a panel for each test set."""
    import matplotlib.pyplot as plt

    names = [name for name in history["chosen"][0] if name != "labels"]
    figure, panels = plt.subplots(1, len(names), figsize=(4 * len(names), 3.2), layout="constrained")
    for panel, name in zip(panels, names, strict=True):
        for arm, marker in (("chosen", "o-"), ("random", "s--")):
            labels = [stage["labels"] for stage in history[arm]]
            panel.plot(labels, [stage[name] for stage in history[arm]], marker, label=arm)
        panel.set(title=f"ethanol at {name}", xlabel="labelled frames", ylabel="force MAE (meV/Å)", ylim=(0, None))
    panels[0].legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    from denskit.active import select
    from denskit.active.frames import read_frames

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/active"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400, help="of each training")
    parser.add_argument("--md-steps", type=int, default=800, help="of each simulation, 0.5 fs each")
    parser.add_argument("--processes", type=int, default=2, help="models trained at the same time")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder = given.output
    folder.mkdir(parents=True, exist_ok=True)
    tests, embedded = test_sets(folder), read_frames(ETHANOL)
    data = {arm: labelled(embedded[: 1200 : 1200 // START], folder / "start.extxyz") for arm in ("chosen", "random")}
    first = train_committee(folder / "start", data["chosen"], [], given)
    runs = {arm: first for arm in data}
    history = {arm: [errors(first, data[arm], tests)] for arm in data}
    random = np.random.default_rng(0)
    for number in range(1, given.rounds + 1):
        place = folder / f"round_{number}"
        pool = simulate(place / "md", runs["chosen"], embedded[number : 1200 : 1200 // REPLICAS], given.md_steps)
        selection = select(runs["chosen"], pool, count=NEW, most_spread=MOST_SPREAD)
        print(f"round {number}: spread {selection.scores[0]:.2f} to {selection.scores[-1]:.2f} eV/Å")
        calm = [row for row, atoms in enumerate(pool) if atoms.info["max_forces_std"] <= MOST_SPREAD]
        drawn = {"chosen": selection.chosen, "random": random.permutation(calm)[:NEW].tolist()}
        for arm, rows in drawn.items():
            new = labelled([pool[row] for row in rows], place / f"{arm}.extxyz")
            data[arm] = joined(data[arm], new, place / f"train_{arm}.extxyz")
            runs[arm] = train_committee(place / arm, data[arm], runs[arm], given)
            history[arm].append(errors(runs[arm], data[arm], tests))
            print(f"round {number}, {arm}: {history[arm][-1]}")
        (folder / "errors.json").write_text(json.dumps(history, indent=2) + "\n", encoding="utf-8")
    plot(history, folder / "errors.png")


if __name__ == "__main__":
    main()
