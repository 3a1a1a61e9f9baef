"""Energy errors up to a constant for each element."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase.build import molecule

from denskit.batch import System
from denskit.data.base import collate
from denskit.data.frames import structures_of
from denskit.tasks.energy_shift import EnergyShift, one_sided


def measured(errors: np.ndarray, systems: list[System]) -> dict[str, float]:
    shift = EnergyShift()
    for begin in range(0, len(systems), 7):
        batch, targets = collate(systems[begin : begin + 7])
        shift.update(targets.energy + torch.from_numpy(errors[begin : begin + 7]), batch, targets)
    return shift.summary()


@pytest.fixture
def many() -> list[System]:
    """Structures of four compositions."""
    names = ("H2O", "CH4", "CH3OH", "CH3CH2OH")
    atoms = [molecule(names[index % 4]) for index in range(40)]
    for frame in atoms:
        frame.info["REF_energy"] = -5.0
    return list(structures_of(atoms)[0])


def test_other_references_leave_no_error(many: list[System]) -> None:
    counts = np.array([[(system.atomic_numbers == z).sum() for z in (1, 6, 8)] for system in many])
    found = measured(counts @ [13.6, 1029.2, 2043.5] + 700.0, many)
    assert found["energy_mae_shifted_meV"] < 1e-3


def test_what_is_left_is_the_error_around_the_mean_of_one_composition(many: list[System]) -> None:
    alike = [many[0]] * 10
    errors = np.random.default_rng(0).normal(size=10)
    found = measured(errors + 5, alike)
    expected = 1000 * np.abs(errors - errors.mean()).mean()
    assert found["energy_mae_shifted_meV"] == pytest.approx(expected, rel=1e-9)
    assert found["energy_mae_shifted_meV_per_atom"] == pytest.approx(expected / len(many[0]), rel=1e-9)


@pytest.mark.parametrize(
    ("mean", "mae", "per_atom", "told"),
    [(137.9e3, 137.9e3, 2000.0, True), (-137.9e3, 138e3, 2000.0, True), (50e3, 137.9e3, 2000.0, False),
     (900.0, 900.0, 100.0, False)],
)  # fmt: skip
def test_other_kinds_of_energies_are_told_by_their_side(mean: float, mae: float, per_atom: float, told: bool) -> None:
    """Raw totals of few structures with many elements, of which no constants can be fitted."""
    errors = {"energy_mean_error_meV": mean, "energy_mae_meV": mae, "energy_mae_meV_per_atom": per_atom}
    assert one_sided(errors) == (mean if told else None)


def test_too_few_structures_are_not_judged(many: list[System]) -> None:
    assert measured(np.array([1.0, 2.0, 3.0, -2.0]), [many[0]] * 4) == {"energy_mean_error_meV": 1000.0}
    assert EnergyShift().summary() == {}
