"""Training says what looks wrong with its data before the first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ase
import ase.io
import numpy as np
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.data.datasets.embedded import FOLDER
from denskit.training.run import train
from denskit.training.settings import RunConfig


def test_training_says_that_forces_have_the_wrong_sign(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    with np.load(FOLDER / "ethanol.npz") as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(tmp_path / "flipped.npz", **{**arrays, "F": -arrays["F"]})
    split = ("data.split.train=200", "data.split.valid=4", "data.split.test=4")
    given = ("data.name=file", "data.molecule=null", f"data.path={tmp_path / 'flipped.npz'}", "training.max_steps=1")
    log = (train(tiny(*split, *given)) / "train.log").read_text(encoding="utf-8")
    assert "training data: problem: -F.dx is -" in log
    assert log.index("training data: problem") < log.index("1/1")


def test_training_on_sound_data_mentions_no_problem(tiny: Callable[..., RunConfig]) -> None:
    log = (train(tiny("training.max_steps=1")) / "train.log").read_text(encoding="utf-8")
    assert "problem" not in log


def test_single_atoms_among_molecules_stop_no_training(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    """They have no neighbours, and nothing to compare."""
    frames = [molecule("H2O") for _ in range(12)] + [ase.Atoms("H"), ase.Atoms("H")]
    for seed, atoms in enumerate(frames):
        atoms.rattle(0.03, seed=seed)
        atoms.calc = SinglePointCalculator(atoms, energy=-5.0 * len(atoms) + 0.01 * seed, forces=0 * atoms.positions)
    ase.io.write(tmp_path / "mixed.extxyz", frames)
    given = ("data.name=file", "data.molecule=null", f"data.path={tmp_path / 'mixed.extxyz'}", "training.max_steps=2")
    run = train(tiny(*given, "data.split={train: 12, valid: 2, test: 0}", "data.references=fit", "task=dens"))
    assert (run / "model.safetensors").is_file()
