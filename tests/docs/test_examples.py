"""The examples run, in the order in which a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ase.io
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.data import DataConfig, load_data

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


def run(folder: Path, script: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
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


@pytest.fixture(scope="module")
def comparison(folder: Path) -> str:
    return run(folder, "train_with_dens.py", "--data", "mine.extxyz", "--steps", "4", "--output", "short")


def test_training_prints_both_columns(comparison: str) -> None:
    (forces,) = (line.split() for line in comparison.splitlines() if line.startswith("forces_mae_meV_per_A "))
    without, with_dens = float(forces[1]), float(forces[2])
    assert without > 0
    assert with_dens > 0
    assert without != with_dens


def test_force_of_the_scan_is_minus_the_slope(folder: Path, comparison: str) -> None:
    ase.io.write(folder / "ethanol.xyz", molecule("CH3CH2OH"))
    table = run(folder, "bond_scan.py", "short/dens", "ethanol.xyz", "1", "0")
    rows = [[float(number) for number in line.split()] for line in table.splitlines()[1:]]
    (shorter, below, _), (_, _, force), (longer, above, _) = rows[3:6]
    slope = (above - below) / (longer - shorter)
    assert -slope == pytest.approx(force, rel=0.05, abs=1.0)  # meV/Å; printed digits and the parabola's error
