"""Step by step the same as ASE's optimizers and cell filter; a structure in a batch the same as alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ase
import ase.optimize
import numpy as np
import pytest
import torch
from ase.build import bulk
from ase.filters import FrechetCellFilter

from denskit.simulation.relaxation import PROTOCOLS, RelaxationSettings, Relaxer
from denskit.simulation.relaxation.cells import VOIGT, CellRelaxation
from denskit.simulation.relaxation.optimizers import FIRE, LBFGS
from denskit.simulation.relaxation.results import Snapshot
from simulation.morse import Morse, MorseCalculator, cluster, system_of

from tolerances import EXACT64, SAME_PATH64

STEPS = 15
OPTIMIZERS = {
    "fire": FIRE(),
    "lbfgs": LBFGS(),
    "short memory": LBFGS(memory=5, maxstep=0.04),
    **{name: settings.optimizer for name, settings in PROTOCOLS.items()},
}
# how we and ASE say the same; strains that keep the deformation diagonal, or leave it free
CELLS: dict[str, tuple[CellRelaxation, Callable[[ase.Atoms], Any]]] = {
    "full": (CellRelaxation(), FrechetCellFilter),
    "hydrostatic": (
        CellRelaxation.from_name("hydrostatic"),
        lambda atoms: FrechetCellFilter(atoms, hydrostatic_strain=True),
    ),
    "lengths": (
        CellRelaxation.from_name("xx,zz"),
        lambda atoms: FrechetCellFilter(atoms, mask=[1, 0, 1, 0, 0, 0]),
    ),
    "under pressure": (
        CellRelaxation.from_name("full", pressure=0.02),
        lambda atoms: FrechetCellFilter(atoms, scalar_pressure=0.02),
    ),
}


def path_of_ase(
    atoms: ase.Atoms, potential: Morse, optimizer: LBFGS | FIRE, wrap: Callable[[ase.Atoms], Any] = lambda atoms: atoms
) -> list[ase.Atoms]:
    """Geometries after 0, 1, ... moves."""
    atoms = atoms.copy()
    atoms.calc = MorseCalculator(potential)
    if isinstance(optimizer, FIRE):
        run: Any = ase.optimize.FIRE(wrap(atoms), logfile=None, maxstep=optimizer.maxstep)
    else:
        run = ase.optimize.LBFGS(wrap(atoms), logfile=None, **optimizer.model_dump(exclude={"name"}))
    path: list[ase.Atoms] = []
    run.attach(lambda: path.append(atoms.copy()))
    run.run(fmax=0.0, steps=STEPS)
    return path


def paths(
    structures: list[ase.Atoms], potential: Morse, settings: RelaxationSettings, batch_atoms: int
) -> list[list[Snapshot]]:
    frames: list[list[Snapshot]] = [[] for _ in structures]
    relaxer = Relaxer(
        potential,
        [system_of(atoms) for atoms in structures],
        settings,
        batch_atoms=batch_atoms,
        observe=lambda frame: frames[frame.index].append(frame),
    )
    while not relaxer.done:
        relaxer.step()
    return frames


def crystal(seed: int) -> ase.Atoms:
    """Four atoms of copper, shaken, sheared and stretched."""
    generator = np.random.default_rng(seed)
    atoms = bulk("Cu", cubic=True, a=2.9)
    atoms.set_cell(atoms.cell @ (np.eye(3) + generator.normal(scale=0.03, size=(3, 3))), scale_atoms=True)
    atoms.positions += generator.normal(scale=0.05, size=(4, 3))
    return atoms


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_same_path_as_ase(optimizer: LBFGS | FIRE) -> None:
    atoms = cluster(8, 0)
    expected = path_of_ase(atoms, Morse(), optimizer)
    (found,) = paths([atoms], Morse(), RelaxationSettings(optimizer=optimizer, fmax=0, steps=STEPS), 100)
    assert [frame.moves for frame in found] == list(range(STEPS + 1))
    assert np.abs(found[-1].positions - atoms.positions).max() > 0.1
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.positions, theirs.positions, rtol=0, atol=SAME_PATH64)
    np.testing.assert_array_equal(found[-1].positions[-1], atoms.positions[-1])  # fixed


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [("full", FIRE()), ("full", LBFGS()), ("hydrostatic", LBFGS()), ("lengths", FIRE()), ("under pressure", LBFGS())],
)
def test_same_cells_as_ase(kind: str, optimizer: LBFGS | FIRE) -> None:
    cell, wrap = CELLS[kind]
    atoms = crystal(1)
    if kind == "lengths":  # ASE projects the deformation, we its logarithm: the same for right angles
        atoms.set_cell(np.diag(np.diag(atoms.cell)), scale_atoms=True)
    expected = path_of_ase(atoms, Morse(stress=True), optimizer, wrap)
    settings = RelaxationSettings(optimizer=optimizer, fmax=0, steps=STEPS, cell=cell)
    (found,) = paths([atoms], Morse(stress=True), settings, 100)
    assert np.abs(found[-1].cell - atoms.cell).max() > 0.05
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.cell, theirs.cell, rtol=0, atol=SAME_PATH64)
        np.testing.assert_allclose(ours.positions, theirs.positions, rtol=0, atol=SAME_PATH64)


@pytest.mark.parametrize(("optimizer", "batch_atoms"), [(FIRE(), 12), (LBFGS(), 1000), (LBFGS(memory=5), 12)])
def test_batch_is_single(optimizer: LBFGS | FIRE, batch_atoms: int) -> None:
    structures = [cluster(n, n) for n in (5, 8, 2)]
    settings = RelaxationSettings(optimizer=optimizer, fmax=0.05, steps=15)
    together = paths(structures, Morse(), settings, batch_atoms)
    for atoms, found in zip(structures, together, strict=True):
        (alone,) = paths([atoms], Morse(), settings, batch_atoms)
        assert len(found) == len(alone)
        for one, other in zip(found, alone, strict=True):
            np.testing.assert_allclose(one.positions, other.positions, rtol=0, atol=SAME_PATH64)


def test_batch_of_cells_is_single() -> None:
    structures = [crystal(seed) for seed in range(3)]
    settings = RelaxationSettings(optimizer=LBFGS(), fmax=0.01, steps=6, cell=CellRelaxation())
    together = paths(structures, Morse(stress=True), settings, 8)
    for atoms, found in zip(structures, together, strict=True):
        (alone,) = paths([atoms], Morse(stress=True), settings, 8)
        np.testing.assert_allclose(found[-1].cell, alone[-1].cell, rtol=0, atol=SAME_PATH64)


def test_published_protocols() -> None:
    old, new = PROTOCOLS["oc20-2021"], PROTOCOLS["oc20-2024"]
    assert old.optimizer == LBFGS(memory=50, maxstep=0.04, damping=1.0, alpha=70.0)
    assert new.optimizer == LBFGS(memory=50, maxstep=0.2, damping=1.2, alpha=80.0)
    assert (old.fmax, old.steps) == (0.0, 299)  # 300 evaluations
    assert (new.fmax, new.steps) == (0.02, 300)


def test_a_relaxed_cell_has_no_stress_but_the_pressure() -> None:
    pressure = 0.02
    potential = Morse(stress=True)
    settings = RelaxationSettings(fmax=5e-4, cell=CellRelaxation(pressure=pressure))
    relaxer = Relaxer(potential, [system_of(crystal(2))], settings)
    results = []
    while not relaxer.done:
        results += relaxer.step()
    assert results[0].status == "converged"
    volume = abs(np.linalg.det(results[0].cell))
    assert np.abs(results[0].stress + pressure * np.eye(3)).max() * volume / 4 < 1e-3
    assert np.abs(results[0].forces).max() < 1e-3


def test_unknown_strain_is_refused() -> None:
    with pytest.raises(ValueError, match="no strain is called .xz2."):
        CellRelaxation.from_name("xx,xz2")
    for strains in (("XX", "yz"), ("zx",), ("xx", "yz ")):
        with pytest.raises(ValueError, match=r"no strain is called '(XX|zx|yz )'"):
            CellRelaxation(strains=strains)
    with pytest.raises(ValueError, match="strains"):
        CellRelaxation(strains=())


def test_hydrostatic_relaxations_have_all_strains() -> None:
    with pytest.raises(ValueError, match="hydrostatic relaxes the volume alone, not the strains xx"):
        CellRelaxation(hydrostatic=True, strains=("xx",))
    assert CellRelaxation(hydrostatic=True).strains == CellRelaxation(hydrostatic=True, strains=VOIGT).strains


def test_dot_ignores_other_systems() -> None:
    """This makes a result independent of the batch."""
    from denskit.simulation.state import RowState

    generator = torch.Generator().manual_seed(0)
    values = torch.randn(60, 3, dtype=torch.float64, generator=generator)
    together = RowState(counts=torch.tensor([10, 30, 20])).dot(values, values)
    alone = RowState(counts=torch.tensor([30])).dot(values[10:40], values[10:40])
    assert float(together[1]) == pytest.approx(float(alone[0]), rel=EXACT64)
