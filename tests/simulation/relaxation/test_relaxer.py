"""The relaxer: who enters and leaves the batch, what happens to bad structures, running out of memory."""

from __future__ import annotations

from dataclasses import replace

import ase
import numpy as np
import pytest
import torch
from ase.build import bulk, fcc111

from denskit.batch import Batch, System
from denskit.simulation.potential import Evaluation
from denskit.simulation.relaxation import RelaxationSettings, Relaxer, relax
from denskit.simulation.relaxation.cells import CellRelaxation
from denskit.simulation.relaxation.optimizers import FIRE, LBFGS
from denskit.simulation.relaxation.results import Relaxed
from simulation.morse import Morse, cluster, system_of

from tolerances import EXACT64, SAME_PATH64

SIZES = (4, 7, 2, 5, 3, 6)
SETTINGS = RelaxationSettings(fmax=0.02, steps=40)


def structures() -> list[System]:
    return [system_of(cluster(n, n)) for n in SIZES]


def assert_same(one: Relaxed, other: Relaxed) -> None:
    assert (one.index, one.status, one.moves) == (other.index, other.status, other.moves)
    assert one.energy == pytest.approx(other.energy, abs=SAME_PATH64)
    np.testing.assert_allclose(one.positions, other.positions, rtol=0, atol=SAME_PATH64)


class SmallMemory(Morse):
    """Has memory for so many atoms at once."""

    def __init__(self, atoms: int) -> None:
        super().__init__()
        self.atoms = atoms

    def __call__(self, batch: Batch) -> Evaluation:
        if batch.num_atoms > self.atoms:
            raise torch.OutOfMemoryError(f"{batch.num_atoms} atoms")
        return super().__call__(batch)


def test_relaxes_into_minima() -> None:
    results = relax(Morse(), structures(), RelaxationSettings(optimizer=FIRE(), fmax=0.01, steps=400))
    assert [result.index for result in results] == list(range(len(SIZES)))
    for system, result in zip(structures(), results, strict=True):
        assert result.status == "converged"
        assert result.fmax is not None and result.fmax < 0.01
        assert result.forces is not None
        assert np.linalg.norm(result.forces[~system.fixed], axis=1).max() < 0.01
        np.testing.assert_array_equal(result.positions[system.fixed], system.positions[system.fixed])
        assert result.moved == pytest.approx(np.linalg.norm(result.positions - system.positions, axis=1).max())


def test_the_distance_from_the_start_does_not_depend_on_the_origin() -> None:
    """A cell that relaxes takes its atoms along: far from the origin they would all have moved far."""
    copper = bulk("Cu", cubic=True, a=2.9)
    copper.rattle(0.05, seed=1)
    far = copper.copy()
    far.positions += 50.0
    how = RelaxationSettings(fmax=0.001, optimizer=FIRE(), cell=CellRelaxation())
    one, other = relax(Morse(stress=True), [system_of(copper), system_of(far)], how)
    assert one.status == "converged" and abs(np.linalg.det(one.cell) / copper.get_volume() - 1) > 0.02
    deformation = np.linalg.solve(copper.cell.array, one.cell)  # cell = cell_0 F^T
    expected = np.linalg.norm(one.positions - copper.positions @ deformation, axis=1).max()
    assert expected > 0.01
    assert one.moved == pytest.approx(expected, rel=1e-6)
    assert other.moved == pytest.approx(expected, rel=1e-4)


def test_converged_structures_leave_and_others_enter() -> None:
    potential = Morse()
    relaxer = Relaxer(potential, structures(), SETTINGS, batch_atoms=10)
    seen, inside = [], []
    while not relaxer.done:
        seen += [relaxed.index for relaxed in relaxer.step()]
        if relaxer.running is not None:
            inside.append(frozenset(relaxer.running.index.tolist()))
            assert int(relaxer.running.n_atoms.sum()) <= 10
    assert sorted(seen) == list(range(len(SIZES)))
    assert len(set(inside)) > 3
    assert max(potential.calls) > max(SIZES)  # several at once


def test_a_structure_larger_than_the_budget_runs_alone() -> None:
    potential = Morse()
    results = relax(potential, structures(), SETTINGS, batch_atoms=1)
    assert set(potential.calls) <= set(SIZES)
    for one, other in zip(results, relax(Morse(), structures(), SETTINGS), strict=True):
        assert_same(one, other)


def test_energy_is_of_the_last_positions() -> None:
    (result,) = relax(Morse(), [system_of(cluster(6, 1))], RelaxationSettings(fmax=0, steps=7))
    assert (result.status, result.moves) == ("not_converged", 7)
    system = replace(system_of(cluster(6, 1)), positions=result.positions)
    (again,) = relax(Morse(), [system], RelaxationSettings(steps=0))
    assert again.energy == pytest.approx(result.energy, rel=EXACT64)
    assert again.moves == 0


@pytest.mark.parametrize("optimizer", [FIRE(), LBFGS()], ids=["fire", "lbfgs"])
def test_out_of_memory_halves_the_batch_and_goes_on(optimizer: LBFGS | FIRE) -> None:
    settings = RelaxationSettings(optimizer=optimizer, fmax=0.02, steps=40)
    said: list[str] = []
    relaxer = Relaxer(SmallMemory(9), structures(), settings, say=said.append)
    results: list[Relaxed] = []
    while not relaxer.done:
        results += relaxer.step()
    assert "out of memory with 6 structures, 27 atoms: from now on at most 13 atoms at once" in said[0]
    for one, other in zip(sorted(results, key=lambda r: r.index), relax(Morse(), structures(), settings), strict=True):
        assert_same(one, other)


def test_memory_that_shrinks_on_the_way_loses_no_move() -> None:
    potential = SmallMemory(1000)
    relaxer = Relaxer(potential, structures(), SETTINGS)
    results = [result for _ in range(6) for result in relaxer.step()]
    potential.atoms = 8
    evaluated = sum(potential.calls)
    while not relaxer.done:
        results += relaxer.step()
    expected = relax(Morse(), structures(), SETTINGS)
    for one, other in zip(sorted(results, key=lambda r: r.index), expected, strict=True):
        assert_same(one, other)
    # every geometry was evaluated once
    assert sum(potential.calls) == sum((r.moves + 1) * n for r, n in zip(expected, SIZES, strict=True)) >= evaluated


def test_a_structure_that_needs_too_much_memory_is_reported() -> None:
    results = relax(SmallMemory(6), structures(), SETTINGS)
    assert [result.status == "out_of_memory" for result in results] == [n > 6 for n in SIZES]
    assert results[1].message == "out of memory with its 7 atoms alone"


def test_other_runtime_errors_are_not_taken_for_memory() -> None:
    class Defect(Morse):
        def __call__(self, batch: Batch) -> Evaluation:
            raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        relax(Defect(), structures(), SETTINGS)


class Explosive(Morse):
    """Gives infinite forces to systems of 5 atoms, NaN to those of 7, from the fourth and fifth step on."""

    def __call__(self, batch: Batch) -> Evaluation:
        found = super().__call__(batch)
        step = len(self.calls)
        of_five, of_seven = ((batch.n_atoms == n)[batch.system_index, None] for n in (5, 7))
        forces = torch.where(of_five & (step > 3), torch.inf, found.forces)
        return replace(found, forces=torch.where(of_seven & (step > 4), torch.nan, forces))


def test_an_explosion_is_reported_and_the_others_go_on() -> None:
    results = relax(Explosive(), structures(), SETTINGS)
    expected = relax(Morse(), structures(), SETTINGS)
    for n, one, other in zip(SIZES, results, expected, strict=True):
        if n in (5, 7):
            assert one.status == "exploded"
            assert f"after {one.moves} moves" in one.message
            assert np.isfinite(one.positions).all()
            assert one.energy is not None and np.isfinite(one.energy)
        else:
            assert_same(one, other)


def test_bad_structures_are_refused_and_the_others_go_on() -> None:
    bad = structures()
    overlapping = bad[0].positions.copy()
    overlapping[1] = overlapping[0]
    bad[0] = replace(bad[0], positions=overlapping)
    bad[1] = replace(bad[1], positions=np.full((7, 3), np.nan))
    bad[2] = replace(bad[2], atomic_numbers=np.array([29, 92]))
    bad[3] = replace(bad[3], pbc=np.ones(3, dtype=bool))  # periodic, but without a cell
    results = relax(Morse(), bad, SETTINGS)
    assert [result.status for result in results[:4]] == ["refused", "refused", "unknown_element", "refused"]
    assert "at one place" in results[0].message
    assert "U is not known" in results[2].message
    assert "no volume" in results[3].message
    for one, other in zip(results[4:], relax(Morse(), structures(), SETTINGS)[4:], strict=True):
        assert_same(one, other)


def test_a_record_that_cannot_be_read_is_refused() -> None:
    class Broken(list[System]):
        def __getitem__(self, index):  # type: ignore[no-untyped-def, override]
            if index == 1:
                raise ValueError("data.lmdb, record 1: no cell")
            return super().__getitem__(index)

    results = relax(Morse(), Broken(structures()), SETTINGS)
    assert results[1].status == "refused"
    assert results[1].message == "data.lmdb, record 1: no cell"
    assert all(result.sound for result in results if result.index != 1)


def test_a_structure_without_atoms_is_refused() -> None:
    results = relax(Morse(), [*structures(), system_of(ase.Atoms())], SETTINGS)
    assert (results[-1].status, results[-1].message) == ("refused", "it has no atoms")
    assert all(result.sound for result in results[:-1])


def test_an_atom_without_neighbours_is_converged() -> None:
    (result,) = relax(Morse(), [system_of(ase.Atoms("Cu"))], SETTINGS)
    assert (result.status, result.moves, result.energy) == ("converged", 0, 0.0)


def test_cells_of_slabs_and_molecules_stay() -> None:
    settings = RelaxationSettings(cell=CellRelaxation(), steps=3)
    slab = bulk("Cu", cubic=True, a=2.9)
    slab.pbc = [True, True, False]
    copper = bulk("Cu", cubic=True, a=2.9)
    results = relax(Morse(stress=True), [system_of(atoms) for atoms in (slab, cluster(3, 0), copper)], settings)
    assert [result.status for result in results] == ["refused", "refused", "not_converged"]
    assert "periodic along xy only" in results[0].message
    assert "not periodic" in results[1].message


def test_cells_need_a_stress() -> None:
    with pytest.raises(ValueError, match="gives none"):
        Relaxer(Morse(), structures(), RelaxationSettings(cell=CellRelaxation()))


def test_nothing_to_relax_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one structure is wanted"):
        relax(Morse(), [], SETTINGS)


@pytest.mark.parametrize(("cell", "told"), [("full", 1), ("hydrostatic", 1), ("xx,yy,xy", 0), (None, 0)])
def test_a_whole_cell_with_vacuum_is_told_once(cell: str | None, told: int) -> None:
    """Its relaxation may close the vacuum; strains within the slab do not."""
    slab = bulk("Cu", cubic=True)
    slab.cell[2, 2] += 12.0
    said: list[str] = []
    how = RelaxationSettings(steps=1, cell=None if cell is None else CellRelaxation.from_name(cell))
    relaxer = Relaxer(
        Morse(stress=True), [system_of(bulk("Cu")), system_of(slab), system_of(slab)], how, say=said.append
    )
    while not relaxer.done:
        relaxer.step()
    assert [text for text in said if "it has vacuum" in text] == [text for text in said if "structure 1: " in text]
    assert len(said) == told


def test_other_settings_name_their_class() -> None:
    wanted = r"RelaxationSettings: from denskit.simulation.relaxation import RelaxationSettings"
    with pytest.raises(TypeError, match=f"settings: found dict; wanted {wanted}"):
        relax(Morse(), structures(), {"fmax": 0.5})  # type: ignore[arg-type]


def test_a_relaxed_structure_for_ase() -> None:
    """With a warning of its vacuum; results can be compared and hashed."""
    slab = fcc111("Cu", (1, 1, 2), vacuum=8.0, periodic=True)
    how = RelaxationSettings(steps=2, cell=CellRelaxation())
    with pytest.warns(UserWarning, match="structure 0: .*vacuum") as warned:
        (relaxed,) = relax(Morse(stress=True), (atoms for atoms in [slab]), how)
    assert warned[0].filename == __file__ and "--" not in str(warned[0].message)
    atoms = relaxed.atoms(slab)
    assert atoms.get_potential_energy() == relaxed.energy and atoms.info["status"] == relaxed.status
    np.testing.assert_array_equal(atoms.get_forces(), relaxed.forces)
    np.testing.assert_allclose(atoms.positions, relaxed.positions)
    np.testing.assert_allclose(atoms.cell.array, relaxed.cell)
    assert relaxed == relaxed and relaxed != replace(relaxed) and len({relaxed, replace(relaxed)}) == 2
    with pytest.raises(ValueError, match="1 atoms are given, and 2 were relaxed"):
        relaxed.atoms(slab[:1])
