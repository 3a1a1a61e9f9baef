"""Total charges and spins in a file, which no model sees."""

from __future__ import annotations

from pathlib import Path

import ase
import ase.db
import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.data.base import Subset
from denskit.data.config import DataConfig
from denskit.data.inspection import Finding, findings_of, inspect_file
from denskit.data.loading import read_file


def ions(**fields: list[float]) -> list[ase.Atoms]:
    frames = []
    for seed in range(12):
        atoms = molecule("CH3OH")
        atoms.rattle(0.05, seed=seed)
        atoms.info |= {name: values[seed % len(values)] for name, values in fields.items()}
        atoms.calc = SinglePointCalculator(atoms, energy=-0.1 * seed, forces=np.zeros((6, 3)))
        frames.append(atoms)
    return frames


def noted(findings: list[Finding]) -> list[str]:
    return [str(found) for found in findings if "no model sees them" in found.means]


@pytest.mark.parametrize("ending", ["extxyz", "traj", "db"])
def test_charges_and_spins_that_differ_are_noted(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"ions.{ending}"
    ase.io.write(file, ions(total_charge=[-1, 0, 1], multiplicity=[2, 1, 2]))
    if ending == "db":  # which keeps no such fields of frames
        with ase.db.connect(file) as database:
            for number in range(1, 13):
                database.update(number, total_charge=(-1, 0, 1)[number % 3], multiplicity=1 + number % 2)
    (line,) = noted(inspect_file(file).findings)
    assert "total_charge is -1, 0, 1 and multiplicity is 1, 2 in different frames" in line
    assert line.startswith("note: ")
    source, _ = read_file(file, DataConfig())
    assert noted(findings_of(Subset(source, np.arange(2, 9), "train"))) == [line]  # as in the log of a training


def test_files_of_one_structure_each(tmp_path: Path) -> None:
    for number, atoms in enumerate(ions(charge=[0, 1])):
        ase.io.write(tmp_path / f"{number}.extxyz", atoms)
    assert "charge is 0, 1 in different frames" in noted(inspect_file(tmp_path).findings)[0]


@pytest.mark.parametrize("fields", [{}, {"charge": [1], "spin": [2]}, {"charge": ["a", "b"]}])
def test_one_charge_is_not_noted(tmp_path: Path, fields: dict[str, list[float]]) -> None:
    ase.io.write(tmp_path / "ions.extxyz", ions(**fields))
    assert not noted(inspect_file(tmp_path / "ions.extxyz").findings)


def test_charges_that_are_absent_or_no_numbers(tmp_path: Path) -> None:
    file = tmp_path / "ions.extxyz"
    ase.io.write(file, ions(charge=[float("nan")]))
    assert not noted(inspect_file(file).findings)
    for value, told in ((1, True), (0, False)):  # a frame without the field is neutral, as far as one knows
        frames = ions(charge=[value])
        for atoms in frames[:4]:
            del atoms.info["charge"]
        ase.io.write(file, frames)
        lines = noted(inspect_file(file).findings)
        assert bool(lines) == told and (not told or "charge is 1, absent in different frames" in lines[0])
