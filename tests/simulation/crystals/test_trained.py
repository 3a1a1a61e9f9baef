"""Trained models of a crystal at the minimum that symmetry gives: no forces, no noise in second derivatives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ase.build import bulk

from denskit.batch import System
from denskit.data.base import collate
from denskit.data.frames import structures_of
from denskit.data.writing import plain
from denskit.simulation.crystals import CrystalSettings, phonons, relaxed_crystal
from denskit.simulation.potential import Potential

ROOT = Path(__file__).parents[3]
PERFECT = {  # a model of every architecture that is offered for crystals, and what it knows
    "equiformer": (ROOT / "examples" / "data" / "tungsten" / "model.safetensors", bulk("W", cubic=True, a=3.25)),
    **{
        name: (ROOT / "tests" / "fixtures" / f"copper_{name}.safetensors", bulk("Cu", cubic=True, a=3.7))
        for name in ("equiformer_v2", "equiformer_v3", "esen")
    },
}
SETTINGS = CrystalSettings(fmax=1e-6, supercell=9.0)


@pytest.fixture(scope="module", params=PERFECT)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def potential(name: str) -> Potential:
    return Potential(PERFECT[name][0], dtype=torch.float64, stress=True)


@pytest.fixture(scope="module")
def crystal(name: str, potential: Potential) -> System:
    (given,), _ = structures_of([PERFECT[name][1]])
    return relaxed_crystal(potential, given, SETTINGS)


def test_relaxation_keeps_the_symmetry_and_leaves_no_forces(potential: Potential, crystal: System) -> None:
    lengths = np.linalg.norm(crystal.cell, axis=1)
    np.testing.assert_allclose(lengths, lengths.mean(), atol=1e-6)
    np.testing.assert_allclose(
        crystal.cell / lengths[:, None] @ (crystal.cell / lengths[:, None]).T, np.eye(3), atol=1e-6
    )
    found = potential(collate([crystal], torch.float64)[0])
    assert found.stress is not None
    assert float(found.forces.abs().max()) < 1e-8, "eV/Å"
    assert float(found.stress.abs().max()) < 1e-6, "eV/Å^3"


def test_second_derivatives_have_no_noise_and_the_symmetry_of_the_site(potential: Potential, crystal: System) -> None:
    """Stiffness of an atom: the same in all directions, and for steps that differ a hundred times."""
    (large,), _ = structures_of([plain(crystal).repeat(3)])

    def stiffness(direction: np.ndarray, step: float) -> np.ndarray:
        pulled = []
        for sign in (1, -1):
            positions = large.positions.copy()
            positions[0] += sign * step * direction
            moved = System(**{**vars(large), "positions": positions})
            pulled.append(potential(collate([moved], torch.float64)[0]).forces[0].numpy())
        return (pulled[1] - pulled[0]) / (2 * step)  # type: ignore[no-any-return]

    oblique = np.array([0.48, -0.6, 0.64])
    expected = stiffness(np.array([1.0, 0, 0]), 1e-4)
    assert expected[0] > 1, "eV/Å^2"
    np.testing.assert_allclose(expected[1:], 0, atol=1e-7 * expected[0])
    np.testing.assert_allclose(stiffness(oblique, 1e-4), expected[0] * oblique, rtol=1e-6)
    np.testing.assert_allclose(stiffness(oblique, 1e-6), expected[0] * oblique, rtol=1e-5)
    np.testing.assert_allclose(stiffness(oblique, 1e-2), expected[0] * oblique, rtol=1e-2)


def test_phonons_do_not_depend_on_the_displacement(potential: Potential, crystal: System) -> None:
    pytest.importorskip("phonopy", reason="phonopy (extra crystals) is not installed")
    wide, narrow = (
        phonons(potential, crystal, SETTINGS.model_copy(update={"displacement": step})) for step in (1e-2, 1e-5)
    )
    assert wide.stable and narrow.stable
    assert narrow.largest == pytest.approx(wide.largest, rel=5e-3)
    assert narrow.smallest == pytest.approx(wide.smallest, abs=0.02), "THz"
