"""Relaxations with force fields: the same as ASE's with the calculator, batched the same as alone."""

from __future__ import annotations

from dataclasses import replace

import ase.optimize
import numpy as np
import pytest
import torch

from contract.variants import build
from denskit.batch import System
from denskit.data.base import collate
from denskit.models import ForceField
from denskit.simulation.calculator import DenskitCalculator
from denskit.simulation.potential import Potential
from denskit.simulation.relaxation import RelaxationSettings, relax
from denskit.simulation.relaxation.cells import CellRelaxation
from denskit.simulation.relaxation.optimizers import FIRE, LBFGS
from denskit.simulation.structures import atoms_of

from tolerances import SAME_PATH_MODEL64
from trained import trained

NAMES = ("ethanol", "slab", "copper")
STEPS = 8


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [(trained(), FIRE()), (trained(), LBFGS(memory=4)), (build("direct", torch.float64), FIRE())],
    ids=["fire", "lbfgs", "direct forces"],
)
def test_same_as_ase_with_the_calculator(
    systems: dict[str, System], model: ForceField, optimizer: FIRE | LBFGS
) -> None:
    settings = RelaxationSettings(optimizer=optimizer, fmax=0, steps=STEPS)
    results = relax(Potential(model), [systems[which] for which in NAMES], settings)
    for which, result in zip(NAMES, results, strict=True):
        (atoms,) = atoms_of(collate([systems[which]], torch.float64)[0])
        atoms.calc = DenskitCalculator(model)
        run = {
            "fire": lambda atoms: ase.optimize.FIRE(atoms, logfile=None, maxstep=0.2),
            "lbfgs": lambda atoms: ase.optimize.LBFGS(atoms, logfile=None, memory=4),
        }[optimizer.name](atoms)
        run.run(fmax=0, steps=STEPS)
        assert result.moves == STEPS
        assert result.moved > 0
        np.testing.assert_allclose(result.positions, atoms.positions, rtol=0, atol=SAME_PATH_MODEL64)
        assert result.energy == pytest.approx(atoms.get_potential_energy(), abs=SAME_PATH_MODEL64)


def test_cells_with_a_model(systems: dict[str, System]) -> None:
    """What the optimizer calls forces are minus the slopes of the energy: it can only go down, by small steps."""
    copper = systems["copper"]
    squeezed = replace(copper, positions=0.97 * copper.positions, cell=0.97 * copper.cell)
    settings = RelaxationSettings(optimizer=LBFGS(maxstep=0.01), fmax=0, steps=10, cell=CellRelaxation())
    start, end = (
        relax(Potential(trained(), stress=True), [squeezed], settings.model_copy(update={"steps": steps}))[0]
        for steps in (0, 10)
    )
    assert start.energy is not None and end.energy is not None
    assert end.energy < start.energy
    assert np.linalg.det(end.cell) > 1.01 * np.linalg.det(start.cell)


def test_elements_are_checked_structure_by_structure(systems: dict[str, System]) -> None:
    xenon = replace(systems["water"], atomic_numbers=np.array([54, 1, 1]))
    results = relax(Potential(trained()), [xenon, systems["water"]], RelaxationSettings(fmax=0, steps=1))
    assert [result.status for result in results] == ["unknown_element", "not_converged"]
    assert "Xe" in results[0].message


def test_float32_models_move_in_float64(systems: dict[str, System]) -> None:
    settings = RelaxationSettings(optimizer=FIRE(), fmax=0, steps=3)
    single, double = (
        relax(Potential(trained(dtype)), [systems["ethanol"]], settings)[0] for dtype in (torch.float32, torch.float64)
    )
    assert single.positions.dtype == np.float64
    assert (single.positions != single.positions.astype(np.float32)).any()
    np.testing.assert_allclose(single.positions, double.positions, atol=1e-5)
