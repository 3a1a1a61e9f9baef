"""Copies of structures in files of other precision, and what is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule

from denskit.batch import System
from denskit.data import read_file
from denskit.data.copies import Copies
from denskit.data.writing import plain
from denskit.simulation.structures import system_of


def many(atoms: ase.Atoms, count: int) -> list[System]:
    found = []
    for seed in range(count):
        moved = atoms.copy()
        moved.rattle(0.1, seed=seed)
        moved.positions *= 1.0 + 0.01 * seed
        found.append(system_of(moved))
    return found


@pytest.mark.parametrize("atoms", [molecule("CH3CH2OH"), bulk("Cu", cubic=True).repeat(4)])
@pytest.mark.parametrize("form", ["float32", "extxyz", "xyz"])
def test_copies_in_other_precision(tmp_path: Path, atoms: ase.Atoms, form: str) -> None:
    known = many(atoms, 20)
    if form == "float32":
        given = [replace(system, positions=system.positions.astype(np.float32).astype(float)) for system in known]
    else:
        ase.io.write(tmp_path / f"a.{form}", [plain(system) for system in known], format="extxyz")
        source = read_file(tmp_path / f"a.{form}")[0]
        given = [source[place] for place in range(len(source))]
    copies = Copies(known[::2])
    assert [system in copies for system in given] == [True, False] * 10


def test_what_is_no_copy() -> None:
    (system,) = many(molecule("CH3CH2OH"), 1)
    copies = Copies([system, *many(molecule("H2O"), 3)])
    assert system in copies
    moved = system.positions.copy()
    moved[3, 1] += 1e-3
    turned = system.atomic_numbers[::-1].copy()
    for other in (
        replace(system, positions=moved),
        replace(system, atomic_numbers=turned),
        replace(system, cell=np.eye(3)),
        replace(system, positions=np.full_like(moved, np.nan)),
    ):
        assert other not in copies
    assert system not in Copies([])
