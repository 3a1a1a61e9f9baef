"""The trained model of the tests is a sane potential, far from where it would not be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.optimize import BFGS
from ase.vibrations import Vibrations

from denskit.simulation.calculator import DenskitCalculator

from trained import TRAINED, trained

LOWEST = {"H2O": 1000, "CH4": 1000, "CH3CH2OH": 50}  # 1/cm, below the softest vibration; of ethanol that is a torsion


@pytest.mark.parametrize("name", LOWEST)
def test_rattled_molecules_relax_to_one_geometry_with_real_vibrations(name: str, tmp_path: Path) -> None:
    reference = molecule(name)
    expected = reference.get_all_distances()
    bonds = (expected > 0) & (expected < 1.6)
    for seed in range(3):
        atoms = reference.copy()
        atoms.rattle(0.1, seed=seed)
        atoms.calc = DenskitCalculator(trained())
        assert BFGS(atoms, logfile=None).run(fmax=1e-4, steps=300)  # takes about 20 for H2O, 100 for ethanol
        np.testing.assert_allclose(atoms.get_all_distances()[bonds], expected[bonds], atol=0.05)  # found: 0.02
    vibrations = Vibrations(atoms, name=str(tmp_path / "vibrations"))
    vibrations.run()
    frequencies = np.array(sorted(vibrations.get_frequencies(), key=abs)[6:])
    assert (frequencies.imag == 0).all() and (frequencies.real > LOWEST[name]).all()
    assert frequencies.real.max() == pytest.approx(3600, abs=800)  # O-H and C-H


def test_copper_is_that_of_its_labels() -> None:
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=3)
    found, expected = (atoms.copy(), atoms.copy())
    found.calc, expected.calc = DenskitCalculator(trained()), EMT()
    np.testing.assert_allclose(found.get_forces(), expected.get_forces(), atol=0.1)  # of 0.8 eV/Å; found: 0.013
    np.testing.assert_allclose(found.get_stress(), expected.get_stress(), atol=2e-3)  # of 0.008 eV/Å^3; found: 2e-4


def test_the_file_is_small() -> None:
    assert TRAINED.stat().st_size < 100_000
