"""How new surroundings are: no orientation, no order, the unit from other structures, lattices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from ase.build import bulk

from denskit.batch import System
from denskit.evaluation.novelty import ALIKE, Surroundings, novelty, radial_novelty
from denskit.simulation.structures import system_of


def atoms(features: list[float], frame: list[int], numbers: list[int]) -> Surroundings:
    """Atoms with one feature each."""
    values = torch.tensor(features, dtype=torch.float64)[:, None]
    return Surroundings(features=values, numbers=torch.tensor(numbers), frame=torch.tensor(frame))


def test_novelty_is_zero_in_training_and_knows_no_orientation(systems: dict[str, System]) -> None:
    ethanol = systems["ethanol"]
    rng = np.random.default_rng(0)

    def moved(by: float) -> System:
        return replace(ethanol, positions=ethanol.positions + rng.normal(scale=by, size=ethanol.positions.shape))

    trained = [ethanol, moved(0.02), moved(0.02)]
    turned, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    order = rng.permutation(len(ethanol))
    other = replace(
        ethanol, positions=(ethanol.positions @ turned)[order] + 1.0, atomic_numbers=ethanol.atomic_numbers[order]
    )
    np.testing.assert_allclose(radial_novelty([ethanol], trained), 0.0, atol=1e-6)
    np.testing.assert_allclose(radial_novelty([other], trained), 0.0, atol=1e-6)
    near, far = radial_novelty([moved(0.02)], trained), radial_novelty([moved(0.3)], trained)
    assert 0.3 < np.median(near) < 3.0
    assert np.median(far) > 4 * np.median(near)
    assert np.isinf(radial_novelty([systems["copper"]], trained)).all()  # no copper in training


def test_copies_of_a_lattice_are_not_infinitely_new() -> None:
    """Training structures that differ in rounding only give no unit of novelty."""
    site = system_of(bulk("W", cubic=True) * (2, 2, 2))
    copies = [replace(site, positions=site.positions + 1e-9 * number) for number in range(4)]
    shaken = replace(site, positions=site.positions + np.random.default_rng(0).normal(scale=0.05, size=(16, 3)))
    assert radial_novelty(copies[:1], copies).max() < 1
    assert 1 < radial_novelty([shaken], copies).max() < 1000


def test_the_unit_is_the_way_to_other_structures() -> None:
    """Equivalent atoms of one structure, as the hydrogens of a methyl group, are no neighbours of each other."""
    known = atoms([1.0, 1.0, 1.0, 3.0, 3.0, 3.0], [0, 0, 0, 1, 1, 1], [1] * 6)
    assert novelty(atoms([8.0, 1.0], [0, 0], [1, 1]), known).tolist() == [2.5, 0.0]


def test_an_element_of_one_structure_takes_the_unit_of_the_others() -> None:
    """An element without training atoms is infinitely new; a single training structure gives no unit of its own."""
    known = atoms([1.0, 3.0, 1.0, 1.0], [0, 1, 0, 0], [1, 1, 8, 8])
    assert novelty(atoms([2.0, 2.0], [0, 0], [8, 6]), known).tolist() == [0.5, float("inf")]
    assert novelty(atoms([2.0], [0], [8]), atoms([1.0], [0], [8])).tolist() == [1 / ALIKE]
    assert novelty(atoms([2.0], [0], [8]), atoms([0.0], [0], [8])).tolist() == [2.0]  # an atom alone has no length
