"""Forces of the wrong sign, told by bonds to hydrogen in files that are too small to compare energies with forces."""

from __future__ import annotations

from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.data.base import Subset
from denskit.data.convert import convert
from denskit.data.datasets.embedded import FOLDER
from denskit.data.inspection import findings_of, inspect_file
from denskit.data.loading import read_file
from denskit.units import BOHR, HARTREE, KCAL_PER_MOL

STIFF = 30.0  # eV/Å^2


def problems(folder: Path, frames: list[ase.Atoms]) -> list[str]:
    ase.io.write(folder / "mine.traj", frames)
    return [str(found) for found in inspect_file(folder / "mine.traj").findings if found.severity == "problem"]


def ethanol(places: range, energies: float = 1.0, forces: float = 1.0) -> list[ase.Atoms]:
    """Frames of the shipped trajectory, labels times factors."""
    source, _ = read_file(FOLDER / "ethanol.npz")
    frames = []
    for system in (source[place] for place in places):
        atoms = ase.Atoms(system.atomic_numbers, system.positions)
        assert system.energy is not None
        assert system.forces is not None
        labels = {"energy": system.energy * energies, "forces": system.forces * forces}
        atoms.calc = SinglePointCalculator(atoms, **labels)
        frames.append(atoms)
    return frames


def test_25_frames_with_flipped_forces(tmp_path: Path) -> None:
    assert problems(tmp_path, ethanol(range(0, 700, 28))) == []
    (found,) = problems(tmp_path, ethanol(range(0, 700, 28), forces=-1))
    assert found.startswith("problem: bonds to H have a force constant of -")
    assert found.endswith("the forces have the wrong sign (gradients?). Multiply the forces of the file by -1")


def test_five_frames_in_atomic_units_with_flipped_forces(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, ethanol(range(0, 300, 60), 1 / HARTREE, -BOHR / HARTREE))
    assert "the forces have the wrong sign (gradients?), and forces are in Hartree/Bohr. Multiply the forces" in found
    assert found.endswith(
        "by -1. Say data.forces_unit=Hartree/Bohr, and data.units=Hartree if the energies are in Hartree"
    )


def test_where_energies_tell_the_sign_bonds_tell_the_unit(tmp_path: Path) -> None:
    assert len(problems(tmp_path, ethanol(range(200), forces=-1))) == 1
    sign, unit = problems(tmp_path, ethanol(range(200), 1 / KCAL_PER_MOL, -1 / KCAL_PER_MOL))
    assert "-F.dx is -" in sign
    assert sign.endswith("wrong sign (gradients?). Multiply the forces of the file by -1")
    assert "eV/Å^2 (20 to 50 in all molecules): forces are in kcal/mol/Å. Say data.units=kcal/mol" in unit
    (found,) = problems(tmp_path, ethanol(range(200), 1 / HARTREE, -BOHR / HARTREE))
    assert "-F.dx is -0.5" in found
    (both,) = problems(tmp_path, ethanol(range(200), -1, -1))
    assert both.endswith(
        "energies and forces have the wrong sign (gradients?). Multiply the energies and forces of the file by -1"
    )


def test_flipped_forces_in_shards(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "mine.extxyz", ethanol(range(0, 700, 28), forces=-1))
    convert([tmp_path / "mine.extxyz"], tmp_path / "shards")
    found = [str(one) for one in inspect_file(tmp_path / "shards").findings if one.severity == "problem"]
    assert len(found) == 1
    assert "wrong sign (gradients?). Multiply the forces of the file by -1. No setting changes the units" in found[0]


def bonded(lengths: np.ndarray, forces: np.ndarray) -> list[ase.Atoms]:
    """Molecules of methane whose bonds have these lengths and forces [M, 4]; energies say nothing."""
    start = molecule("CH4")
    along = (start.positions - start.positions[0])[1:]
    along /= np.linalg.norm(along, axis=1)[:, None]
    rng, frames = np.random.default_rng(1), []
    for length, force in zip(lengths, forces, strict=True):
        atoms = start.copy()
        atoms.positions[1:] = atoms.positions[0] + length[:, None] * along
        pull = force[:, None] * along
        labels = {"energy": rng.normal(), "forces": np.concatenate([-pull.sum(axis=0)[None], pull])}
        atoms.calc = SinglePointCalculator(atoms, **labels)
        frames.append(atoms)
    return frames


@pytest.mark.parametrize("natural", [1.09, 1.25])
def test_a_barrier_is_no_bond(tmp_path: Path, natural: float) -> None:
    """A proton between two atoms is pushed away from the middle, farther off than a bond is long."""
    lengths = natural + np.random.default_rng(0).normal(0, 0.02, (12, 4))
    found = [line for line in problems(tmp_path, bonded(lengths, STIFF * (lengths - natural))) if "bonds to H" in line]
    assert len(found) == (natural == 1.09)


@pytest.mark.parametrize("within", [0.0, 0.004])
def test_relaxed_materials_with_other_bonds_are_no_evidence(tmp_path: Path, within: float) -> None:
    """Lengths and remaining forces both differ from one material to the next, and hardly within one."""
    rng = np.random.default_rng(0)
    lengths = np.repeat(1.09 + rng.normal(0, 0.02, (12, 1)), 4, axis=1) + within * rng.normal(size=(12, 4))
    found = problems(tmp_path, bonded(lengths, STIFF * (lengths - 1.09)))
    assert not [line for line in found if "bonds to H" in line]


def test_a_trend_that_no_unit_explains_is_no_evidence(tmp_path: Path) -> None:
    lengths = 1.09 + np.random.default_rng(0).normal(0, 0.02, (12, 4))
    assert not [line for line in problems(tmp_path, bonded(lengths, 9.0 * (lengths - 1.09))) if "bonds to H" in line]


@pytest.mark.parametrize(
    ("name", "count"), [("rmd17_ethanol_a", 5), ("rmd17_aspirin_train", 10), ("3bpa_train_300K", 5), ("water_train", 5)]
)
def test_few_frames_of_real_data(data_dir: Path, tmp_path: Path, name: str, count: int) -> None:
    frames = ase.io.read(data_dir / f"{name}.extxyz", index=":80")[:: 80 // count][:count]
    said = "have the wrong sign"
    assert not [line for line in problems(tmp_path, frames) if said in line]
    for atoms in frames:
        atoms.calc = SinglePointCalculator(atoms, energy=atoms.get_potential_energy(), forces=-atoms.get_forces())
    assert [line for line in problems(tmp_path, frames) if said in line]


def test_few_relaxed_crystals_of_real_data(data_dir: Path) -> None:
    """Bonds of O and H correlate with the forces up to 0.998 in 25 of them."""
    source, _ = read_file(data_dir / "mptrj_850.extxyz")
    for seed in range(12):
        few = Subset(source, np.random.default_rng(seed).permutation(len(source))[:25], "train")
        assert not [found for found in findings_of(few) if "have the wrong sign" in found.means]
