"""What ``denskit evaluate`` says where errors are those of a unit."""

from __future__ import annotations

import re
from pathlib import Path

import ase.io
import pytest
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator

from cli_calls import denskit
from denskit.cli.evaluate import _energies_of, _force_unit_of, _stress_unit_of
from denskit.simulation.calculator import DenskitCalculator
from denskit.units import KCAL_PER_MOL

from trained import TRAINED


@pytest.mark.parametrize(("cosine", "told"), [(0.7, True), (0.1, False)])
def test_forces_that_are_not_parallel_tell_no_unit(cosine: float, told: bool) -> None:
    """As of a model that has learned nothing: it predicts hardly any forces."""
    errors = {
        "energy_mae_meV_per_atom": 500.0,
        "energy_mae_shifted_meV_per_atom": 1.0,
        "forces_slope": 7e-4,
        "forces_cosine": cosine,
    }
    assert ("in another unit" in _energies_of(errors)) == told


@pytest.mark.parametrize(("slope", "cosine"), [(7e-4, 0.1), (1.0, 0.99), (5.0, 0.3)])
def test_constants_are_told_also_where_forces_are_not_learned(slope: float, cosine: float) -> None:
    errors = {
        "energy_mae_meV_per_atom": 500.0, "energy_mae_shifted_meV_per_atom": 1.0, "forces_slope": slope,
        "forces_cosine": cosine,
    }  # fmt: skip
    assert "differ by a constant for each element" in _energies_of(errors)


@pytest.mark.parametrize(
    ("slope", "cosine", "told"),
    [
        (20.0, 0.87, True),
        (20.0, 0.3, False),
        (23.0, 0.95, True),
        (4.0, 0.87, False),
        (0.04, 0.87, False),
        (1.1, 1, False),
    ],
)
def test_forces_tenfold_too_large_tell_a_unit_also_of_a_model_that_is_not_accurate(
    slope: float, cosine: float, told: bool
) -> None:
    """A poor model may predict forces that are much too small, and none that are much too large."""
    hint = _force_unit_of({"forces_slope": slope, "forces_cosine": cosine})
    assert ("data.units=kcal/mol" in hint) == told


@pytest.mark.parametrize(
    ("slope", "cosine", "forces", "words"),
    [
        (-0.9, -0.95, 0.99, "of the opposite sign.*data.stress_sign=compression reads it, and denskit info"),
        (-6e-4, -0.95, 0.99, "data.stress_sign=compression data.stress_unit=kbar reads it"),
        (-6e-3, -0.95, 0.99, "data.stress_sign=compression data.stress_unit=GPa reads it"),
        (0.9, 0.95, 0.99, "^$"),
        (-0.9, -0.6, 0.99, "^$"),
        (-0.9, -0.95, 0.5, "^$"),  # a model that has learned little: its stresses may have any sign
        (-0.0228, -0.95, 0.99, "^$"),  # of no unit
    ],
)
def test_moderate_stresses_of_the_wrong_sign_are_told(slope: float, cosine: float, forces: float, words: str) -> None:
    errors = {
        "stress_mae_meV_per_A3": 20.0, "stress_slope": slope, "stress_cosine": cosine, "forces_cosine": forces,
    }  # fmt: skip
    assert re.search(words, _stress_unit_of(errors))


def test_another_unit_is_named_also_where_atoms_have_no_force(tmp_path: Path) -> None:
    """A third of the cells is perfect; that their energies differ by constants, too, is no hint of other references."""
    frames = []
    for seed in range(12):
        atoms = bulk("Cu", cubic=True)
        if seed % 3:
            atoms.rattle(0.03, seed=seed)
        atoms.calc = DenskitCalculator(TRAINED, dtype="float64")
        energy, forces = atoms.get_potential_energy() / KCAL_PER_MOL, atoms.get_forces() / KCAL_PER_MOL
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        frames.append(atoms)
    ase.io.write(tmp_path / "kcal.traj", frames)
    said = denskit("evaluate", TRAINED, tmp_path / "kcal.traj")
    text = " ".join((said.output + said.stderr).split())
    assert "predicted forces are 0.0434 times those of the file (least squares)" in text
    assert "differ by a constant for each element" not in text
    read = denskit("evaluate", TRAINED, tmp_path / "kcal.traj", "data.units=kcal/mol")
    assert "in another unit" not in read.output + read.stderr
