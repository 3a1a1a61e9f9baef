"""Total charge and spin by the fields of a structure, and calculators that are set to them."""

from __future__ import annotations

from typing import Any

import ase
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.calculator import Calculator
from ase.calculators.emt import EMT

from denskit.data.electrons import ElectronSettings, charge_and_multiplicity


def with_fields(name: str, **fields: Any) -> ase.Atoms:
    atoms = molecule(name)
    atoms.set_initial_magnetic_moments(None)
    atoms.info |= fields
    return atoms


@pytest.mark.parametrize(
    ("name", "fields", "meant"),
    [
        ("H2O", {}, (None, None)),
        ("H2O", {"charge": 1, "total_charge": np.float32(1)}, (1, None)),
        ("H2O", {"charge": 0, "spin": 1}, (0, 1)),  # the multiplicity, as in OMol25
        ("CH3", {"spin": 2}, (None, 2)),
        ("CH3", {"spin": 1}, (None, 2)),  # nine electrons have no singlet: one unpaired
        ("O2", {"spin": 2}, (None, 3)),  # sixteen have no doublet: two unpaired
        ("O2", {"spin": 3, "multiplicity": 3.0}, (None, 3)),
        ("H2O", {"spin": 0}, (None, 1)),
        ("CH3", {"total_spin": 0.5, "spin_multiplicity": 2}, (None, 2)),
        ("CH3", {"charge": -1, "spin": 1}, (-1, 1)),
        ("H2O", {"charge": "one", "spin": float("nan")}, (None, None)),
    ],
)
def test_what_the_fields_mean(name: str, fields: dict[str, Any], meant: tuple[int | None, int | None]) -> None:
    assert charge_and_multiplicity(with_fields(name, **fields)) == meant


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"charge": 1, "total_charge": 0}, "charge=1 and total_charge=0 contradict each other"),
        ({"charge": 0.5}, "charge=0.5, where a whole number is wanted"),
        ({"multiplicity": 0}, "multiplicity=0, where a number above 0 is wanted"),
        ({"charge": 1, "spin": 0}, "spin=0, where 9 electrons, an odd number, cannot all be paired"),
        ({"multiplicity": 1, "spin": 3}, "spin=3 and multiplicity=1 contradict|multiplicity=1 and spin=3 contradict"),
    ],
)
def test_fields_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        charge_and_multiplicity(with_fields("H2O", **fields))


def test_charges_and_moments_of_the_atoms() -> None:
    atoms = with_fields("H2O", charge=1)
    atoms.set_initial_charges([0.6, 0.2, 0.2001])  # rounded, as they often are
    assert charge_and_multiplicity(atoms) == (1, None)
    atoms.set_initial_charges([-1, 0.5, 0.5])
    with pytest.raises(ValueError, match="charge=1, but the initial charges add up to 0; correct one"):
        charge_and_multiplicity(atoms)
    atoms = with_fields("O2", multiplicity=3)
    atoms.set_initial_magnetic_moments([-0.9, -0.9])
    assert charge_and_multiplicity(atoms) == (None, 3)
    atoms.set_initial_magnetic_moments([1, -1])
    with pytest.raises(ValueError, match="multiplicity=3 is 2 unpaired electrons, but .* add up to 0; correct one"):
        charge_and_multiplicity(atoms)


class Charged(Calculator):
    """Knows a charge and, by another name, a multiplicity."""

    default_parameters = {"charge": 0, "mult": None}  # noqa: RUF012 (as ASE's)


def test_a_calculator_follows_the_structures() -> None:
    calculator = Charged()
    settings = ElectronSettings(calculator)
    assert settings.set_for(with_fields("CH3", charge=1, spin=1)) == []
    assert calculator.parameters == {"charge": 1, "mult": 1}
    settings.set_for(with_fields("H2O"))  # says nothing: as before
    assert calculator.parameters == {"charge": 0, "mult": None}
    calculator = Charged(charge=-1)
    of_ions = ElectronSettings(calculator)
    for fields, charge in (({"charge": 1}, 1), ({}, -1), ({"charge": 0}, 0)):
        of_ions.set_for(with_fields("H2O", **fields))
        assert calculator.parameters.charge == charge
    of_ions.set_for(with_fields("H2O", spin=1))  # 11 electrons
    assert calculator.parameters == {"charge": -1, "mult": 2}


def test_a_calculator_that_names_its_parameters_when_it_has_them() -> None:
    """As Gaussian, ORCA and others of ASE, which take a charge without a default."""

    class Plain(Calculator):
        pass

    calculator = Plain(charge=0, mult=1)
    assert ElectronSettings(calculator).set_for(with_fields("CH3", charge=1, multiplicity=1)) == []
    assert calculator.parameters == {"charge": 1, "mult": 1}
    assert ElectronSettings(Plain()).set_for(with_fields("CH3", charge=1)) == ["total charge"]


def test_what_a_calculator_cannot_be_told() -> None:
    settings = ElectronSettings(EMT())
    assert settings.set_for(with_fields("H2O", charge=0, multiplicity=1)) == []
    assert settings.set_for(with_fields("CH3", charge=-2, spin=2)) == ["total charge", "spin"]
    atoms = with_fields("CH3", charge=1)
    atoms.set_initial_charges([1, 0, 0, 0])  # ASE hands these to any calculator
    assert settings.set_for(atoms) == []
