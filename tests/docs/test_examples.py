"""The examples run, in the order in which a reader would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.data import DataConfig, load_data

from trained import TRAINED

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


def run(folder: Path, script: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    source = load_data(DataConfig(name="embedded"), seed=0).train
    frames = []
    for system in (source[index] for index in range(40)):
        frames.append(ase.Atoms(system.atomic_numbers, system.positions))
        frames[-1].calc = SinglePointCalculator(frames[-1], energy=system.energy, forces=system.forces)
    ase.io.write(folder / "mine.extxyz", frames)
    return folder


def test_training_prints_both_columns(folder: Path) -> None:
    comparison = run(folder, "train_with_dens.py", "--data", "mine.extxyz", "--steps", "4", "--output", "short")
    (forces,) = (line.split() for line in comparison.splitlines() if line.startswith("forces_mae_meV_per_A "))
    without, with_dens = float(forces[1]), float(forces[2])
    assert without > 0
    assert with_dens > 0
    assert without != with_dens


def test_force_of_the_scan_is_minus_the_slope(folder: Path) -> None:
    """Near the longest bond, by the central difference of four energies."""
    ase.io.write(folder / "ethanol.xyz", molecule("CH3CH2OH"))
    table = run(folder, "bond_scan.py", str(TRAINED), "ethanol.xyz", "1", "0")
    length, energy, force = np.array([[float(number) for number in line.split()] for line in table.splitlines()[1:]]).T
    slope = (energy[4] - 8 * energy[5] + 8 * energy[7] - energy[8]) / (12 * (length[6] - length[5]))
    assert abs(slope) > 500  # meV/Å
    assert -slope == pytest.approx(force[6], rel=0.02)
