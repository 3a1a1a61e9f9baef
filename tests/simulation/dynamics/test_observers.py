"""Observers: the right frame, the right bond, the right system; and conservation of energy."""

from __future__ import annotations

from dataclasses import replace

import ase
import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from torch import Tensor

from denskit.batch import Batch, select
from denskit.simulation.dynamics.conservation import energy_drift, nve_score
from denskit.simulation.dynamics.observers import (
    BondStability,
    Finite,
    NotAlone,
    NotTooHot,
    Observer,
    find_bonds,
    look,
)
from denskit.simulation.structures import batch_of

COLD = torch.tensor([300.0, 300.0, 300.0])
OBSERVERS = (Finite(), NotTooHot(300.0), NotAlone())


def reasons(observer: Observer, batch: Batch) -> dict[int, str]:
    """Unstable systems, with the reasons."""
    return {found.system: found.reason for found in observer.look(batch, COLD[: batch.num_systems])}


def bond_set(atoms: ase.Atoms) -> set[tuple[int, int]]:
    return {(int(one), int(other)) for one, other in find_bonds(batch_of([atoms])).pairs.T}


def moved(batch: Batch, atom: int, by: tuple[float, float, float]) -> Batch:
    positions = batch.positions.clone()
    positions[atom] += torch.tensor(by, dtype=positions.dtype)
    return replace(batch, positions=positions)


def ethanols() -> Batch:
    return batch_of([molecule("CH3CH2OH")] * 3)


def test_bonds_of_molecules() -> None:
    ethanol = molecule("CH3CH2OH")  # C0 of the methyl group, C1, O2 with H3
    wanted = {(0, 1), (1, 2), (2, 3), (1, 4), (1, 5), (0, 6), (0, 7), (0, 8)}
    assert bond_set(ethanol) == wanted
    assert len(bond_set(molecule("C6H6"))) == 12
    assert bond_set(ase.Atoms("Ar2", [[0, 0, 0], [0, 0, 4.0]])) == set()


def test_bonds_across_the_edge_of_a_cell_are_measured_there() -> None:
    copper = bulk("Cu", cubic=True)
    bonds = find_bonds(batch_of([copper]))
    assert len(bonds.mean) == 4 * 12 // 2
    assert bonds.mean.numpy() == pytest.approx(3.61 / np.sqrt(2))


def test_means_come_from_the_reference() -> None:
    batch = ethanols()
    generator = np.random.default_rng(0)
    reference = molecule("CH3CH2OH").positions + generator.normal(scale=0.1, size=(20, 9, 3))
    bonds = find_bonds(batch).with_means(batch, reference)
    for one, other, mean in zip(*bonds.pairs.tolist(), bonds.mean.tolist(), strict=True):
        assert mean == pytest.approx(np.linalg.norm(reference[:, one] - reference[:, other], axis=1).mean())
    with pytest.raises(ValueError, match=r"8 atoms and the simulated systems have \[9\]"):
        find_bonds(batch).with_means(batch, reference[:, :8])


def test_an_exploding_trajectory_is_caught_at_its_frame_and_bond() -> None:
    batch = ethanols()
    observer = BondStability(find_bonds(batch))
    length = float(find_bonds(batch).mean[0])  # C0-C1, pulled apart by 0.06 Å a frame in system 1
    direction = (batch.positions[9] - batch.positions[10]) / length
    first = None
    for frame in range(20):
        positions = batch.positions.clone()
        positions[[9, 15, 16, 17]] += 0.06 * frame * direction  # the methyl group of system 1
        found = look([observer], replace(batch, positions=positions), COLD)
        if found:
            first = (frame, found)
            break
    assert first is not None
    frame, (broken,) = first
    assert frame == 9  # 0.54 Å; at frame 8 it was 0.48 Å
    assert (broken.system, broken.check) == (1, "bonds")
    assert broken.reason == f"bond C0-C1 is {length + 0.54:.2f} Å long, its mean is {length:.2f} Å"


def test_a_bond_too_short_or_not_a_number_is_broken() -> None:
    batch = ethanols()
    observer = BondStability(find_bonds(batch))
    short = batch.positions.clone()
    short[18 + 3] = short[18 + 2] + 0.45 * (short[18 + 3] - short[18 + 2])
    assert reasons(observer, replace(batch, positions=short)).keys() == {2}
    nan = moved(batch, 4, (torch.nan, 0, 0))
    assert reasons(observer, nan).keys() == {0}
    assert "C1-H4 is nan" in reasons(observer, nan)[0]


def test_selected_observers_know_the_systems_that_are_left() -> None:
    mixed = batch_of([molecule("CH3CH2OH"), molecule("H2O"), molecule("CH4")])
    keep = torch.tensor([True, False, True])
    rest, observer = select(mixed, keep), BondStability(find_bonds(mixed)).select(keep)
    assert reasons(observer, rest) == {}
    assert torch.equal(observer.bonds.mean, find_bonds(rest).mean)
    broken = moved(rest, 9 + 2, (0.0, 3.0, 0.0))  # a hydrogen of methane
    assert reasons(observer, broken).keys() == {1}
    assert "C0-H2" in reasons(observer, broken)[1]
    assert reasons(NotAlone().select(keep), rest) == {}


@pytest.mark.parametrize(
    ("check", "atom", "by", "temperature"),
    [
        ("finite", 10, (torch.inf, 0.0, 0.0), 300.0),
        ("alone", 13, (0.0, 4.0, 0.0), 300.0),
        ("alone", 13, (1e7, 0.0, 0.0), 300.0),
        ("temperature", 13, (0.0, 0.0, 0.0), 10_301.0),
        ("temperature", 13, (0.0, 0.0, 0.0), float("nan")),
    ],
)
def test_observers_of_single_frames(check: str, atom: int, by: tuple[float, float, float], temperature: float) -> None:
    batch = ethanols()
    assert look(OBSERVERS, batch, COLD) == []
    temperatures: Tensor = torch.tensor([300.0, temperature, 10_299.0])
    found = look(OBSERVERS, moved(batch, atom, by), temperatures)
    assert (1, check) in {(one.system, one.check) for one in found}
    assert {one.system for one in found} == {1}


def test_alone_in_a_cell_counts_images() -> None:
    pair = ase.Atoms("Ar2", [[0, 0, 0], [x := 2.6, 0, 0]], cell=[5, 5, 5], pbc=True)  # images at 2.4 Å
    apart = ase.Atoms("Ar2", [[0, 0, 0], [x, 0, 0]], cell=[6, 6, 6], pbc=True)
    single = ase.Atoms("Ar", cell=[5, 5, 5], pbc=True)
    assert reasons(NotAlone(), batch_of([pair, apart, single])).keys() == {1}


def test_drift_is_the_slope_an_atom() -> None:
    time = np.linspace(0, 4, 101)  # ps
    wave = np.cos(2 * np.pi * 5 * time)  # whole periods: no slope of its own
    energy = -100 + 0.018 * time + 0.001 * wave
    assert energy_drift(time, energy, 9) == pytest.approx(0.002, rel=0.02)
    kinetic = 0.5 + 0.03 * wave
    assert nve_score(time, energy, kinetic) == pytest.approx(0.018 * 4 / kinetic.std(), rel=0.02)
    with pytest.raises(ValueError, match="two energies or more, found 1"):
        energy_drift(time[:1], energy[:1], 9)
