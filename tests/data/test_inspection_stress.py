"""``denskit info`` names stresses of two kinds in one file, of VASP's order, of unknown units, and virials."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.stress import full_3x3_to_voigt_6_stress, voigt_6_to_full_3x3_stress

from denskit.data.inspection import inspect_file
from denskit.units import GPA

Change = Callable[[np.ndarray, float], np.ndarray]  # of a stress [3, 3], and the volume


def crystals(count: int = 120, *, rattle: float, strain: float = 0.015, unlike: bool = False) -> list[ase.Atoms]:
    """Strained and rattled cells; ``unlike``: of different sizes, hardly strained."""
    rng = np.random.default_rng(1)
    frames = []
    for number in range(count):
        repeats = (1 + number % 4, 1 + number // 4 % 3, 1 + number // 12 % 2) if unlike else (1, 1, 1)
        atoms = bulk("Cu", cubic=True).repeat(repeats)
        if not unlike:
            atoms.set_cell(atoms.cell.array @ (np.eye(3) + rng.normal(0, strain, (3, 3))), scale_atoms=True)
        atoms.rattle(rattle, rng=rng)
        atoms.calc = EMT()
        labels = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        atoms.calc = SinglePointCalculator(atoms, **labels, stress=atoms.get_stress(voigt=False))
        frames.append(atoms)
    return frames


def changed(frames: list[ase.Atoms], change: Change, every: int = 1) -> set[int]:
    for atoms in frames[::every]:
        atoms.calc.results["stress"] = change(atoms.calc.results["stress"], atoms.get_volume())
    return set(range(0, len(frames), every))


def problems(folder: Path, frames: list[ase.Atoms]) -> list[tuple[str, set[int]]]:
    ase.io.write(folder / "mine.traj", frames)
    return [(str(found), set(found.frames)) for found in inspect_file(folder / "mine.traj").problems]


def opposite(stress: np.ndarray, volume: float) -> np.ndarray:
    return -stress


def in_gpa(stress: np.ndarray, volume: float) -> np.ndarray:
    return stress / GPA


def vasp(stress: np.ndarray, volume: float) -> np.ndarray:
    return -10 * stress / GPA


def mega(stress: np.ndarray, volume: float) -> np.ndarray:
    return 1000 * stress / GPA


def virial(stress: np.ndarray, volume: float) -> np.ndarray:
    return -stress * volume


def in_vasp_order(stress: np.ndarray, volume: float) -> np.ndarray:
    """Six numbers xx yy zz xy yz zx, read as xx yy zz yz xz xy."""
    read: np.ndarray = voigt_6_to_full_3x3_stress(full_3x3_to_voigt_6_stress(stress)[[0, 1, 2, 5, 3, 4]])
    return read


@pytest.mark.parametrize("every", [2, 8])
@pytest.mark.parametrize(
    ("rattle", "change", "words"),
    [
        (0.0, opposite, "in some of the frames the stress has the wrong sign"),
        (0.03, vasp, "in some of the frames the stress has the wrong sign.*in kbar"),
        (0.03, in_gpa, "in some of the frames the stress is in GPa"),
        (0.0, in_vasp_order, "in some of the frames the stress is in VASP's order"),
    ],
)
def test_stresses_of_two_kinds_are_told_by_the_energies(
    tmp_path: Path, rattle: float, every: int, change: Change, words: str
) -> None:
    frames = crystals(rattle=rattle)
    other = changed(frames, change, every)
    found = [one for one in problems(tmp_path, frames) if "energies do not change as the stress says" in one[0]]
    assert len(found) == 1
    assert re.search(words, found[0][0])
    named = found[0][1]
    assert len(named - other) <= 0.05 * len(other)
    assert len(named) > (0.2 if change is in_vasp_order else 0.7) * len(other)  # few strains tell the order


@pytest.mark.parametrize("rattle", [0.0, 0.03])
@pytest.mark.parametrize(("change", "words"), [(None, ""), (vasp, "sign.*kbar.*stress_unit=kbar")])
def test_the_order_of_vasp_is_named(tmp_path: Path, rattle: float, change: Change | None, words: str) -> None:
    frames = crystals(rattle=rattle)
    changed(frames, in_vasp_order)
    if change is not None:
        changed(frames, change)
    found = [text for text, _ in problems(tmp_path, frames)]
    assert len(found) == 1
    assert "the stress is in VASP's order xx yy zz xy yz zx. Write it as xx yy zz yz xz xy" in found[0]
    assert re.search(words, found[0])


@pytest.mark.parametrize("strain", [1e-4, 1e-2])
def test_energies_less_exact_than_strains_are_large_are_no_mixture(tmp_path: Path, strain: float) -> None:
    frames = crystals(60, rattle=0.0, strain=strain)
    rng = np.random.default_rng(0)
    for atoms in frames:
        atoms.calc.results["energy"] += rng.normal(0, 0.01)
    assert not [text for text, _ in problems(tmp_path, frames) if "stress" in text]


@pytest.mark.parametrize(("change", "factor"), [(mega, "6.241509e-06"), (lambda s, v: 1e9 * s / GPA, "6.241509e-12")])
def test_other_units_are_told_by_the_energies(tmp_path: Path, change: Change, factor: str) -> None:
    frames = crystals(rattle=0.03)
    changed(frames, change)
    assert any(f"Multiply the stress of the file by {factor}" in text for text, _ in problems(tmp_path, frames))
    changed(frames, opposite)
    assert any(f"Multiply the stress of the file by -{factor}" in text for text, _ in problems(tmp_path, frames))


@pytest.mark.parametrize("every", [2, 10])
def test_stresses_of_two_sizes_are_named(tmp_path: Path, every: int) -> None:
    frames = crystals(rattle=0.02, unlike=True)
    assert not problems(tmp_path, frames)
    other = changed(frames, vasp, every)
    (text, named), *more = problems(tmp_path, frames)
    assert "stresses are of two sizes" in text
    assert not more
    assert named == other


@pytest.mark.parametrize(
    ("change", "words", "absent"),
    [
        (vasp, "the stress is in kbar", "MPa"),
        (mega, "larger than in GPa or kbar, perhaps in MPa, bar or Pa", "stress_unit"),
        (virial, "they grow with the volume: virials, not divided by it", "stress_unit"),
    ],
)
def test_what_large_stresses_may_be(tmp_path: Path, change: Change, words: str, absent: str) -> None:
    """The cells have the same density, so only virials grow with their volume."""
    frames = crystals(rattle=0.02, unlike=True)
    changed(frames, change)
    (text, _), *more = problems(tmp_path, frames)
    assert not more
    assert words in text
    assert absent not in text
