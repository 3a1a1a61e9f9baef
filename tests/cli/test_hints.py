"""What ``denskit evaluate`` says where errors are those of a unit."""

from __future__ import annotations

from pathlib import Path

import ase.io
import pytest
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator

from cli_calls import denskit
from denskit.cli.evaluate import _shift_of
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
    assert ("in another unit" in _shift_of(errors)) == told


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
