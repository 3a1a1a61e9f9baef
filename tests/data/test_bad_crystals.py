"""Stress without a volume, cells that are too small, units that sizes do not settle: each is named with its frames."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path

import ase
import ase.io
import lmdb
import numpy as np
import pytest
import torch
from ase.build import bulk, fcc111, molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.data import DataConfig, read_file
from denskit.data.base import collate
from denskit.data.crowding import crowding
from denskit.data.frames import structures_of
from denskit.data.inspection import inspect_file
from denskit.models.prediction import batches
from denskit.simulation.calculator import DenskitCalculator
from denskit.simulation.dynamics.folder import DynamicsPlan, molecular_dynamics
from denskit.simulation.dynamics.settings import DynamicsSettings
from denskit.simulation.potential import Potential
from denskit.simulation.relaxation import RelaxationSettings, relax
from denskit.simulation.relaxation.cells import CellRelaxation
from denskit.simulation.relaxation.relaxer import Relaxer
from denskit.units import GPA

from trained import trained


def _with_stress(atoms: ase.Atoms, energy: float = -1.0) -> ase.Atoms:
    forces = np.random.default_rng(len(atoms)).normal(size=(len(atoms), 3))
    atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces - forces.mean(0), stress=np.full(6, 0.01))
    return atoms


def _slab(pbc: tuple[bool, bool, bool]) -> ase.Atoms:
    atoms = fcc111("Cu", (2, 2, 3), vacuum=8)
    atoms.pbc = pbc
    return _with_stress(ase.Atoms(atoms))


def _files(tmp_path: Path, frames: list[ase.Atoms]) -> Path:
    ase.io.write(tmp_path / "mine.extxyz", frames)
    return tmp_path / "mine.extxyz"


def test_a_stress_without_a_volume_is_refused_where_it_is_trained_on(tmp_path: Path) -> None:
    path = _files(tmp_path, [_with_stress(bulk("Cu")), _slab((True, True, False)), _with_stress(molecule("CO"))])
    with pytest.raises(ValueError, match=r"mine.extxyz: frames 1, 2 .* cannot have a stress.*data.missing=mask, or"):
        read_file(path, required=("stress",))
    source, messages = read_file(path, DataConfig(missing="mask"), required=("stress",))
    assert [system.stress is None for system in source] == [False, True, True]
    assert any("the stress of frames 1, 2 (counted from 0) is ignored" in line for line in messages)


def test_molecules_alone_are_told_to_train_without(tmp_path: Path) -> None:
    path = _files(tmp_path, [_with_stress(molecule("CO"))])
    with pytest.raises(ValueError, match="frame 0 .* cannot have a stress.*Train without stress: task.stress_weight=0"):
        read_file(path, DataConfig(missing="mask"), required=("stress",))


def test_a_stress_without_a_volume_in_shards(tmp_path: Path) -> None:
    row = {"numbers": [29], "positions": [[0, 0, 0]], "cell": [[3, 0, 0], [0, 3, 0], [0, 0, 20]], "energy": -1.0}
    row |= {"pbc": [True, True, False], "stress": [0.1] * 6, "forces": [[0, 0, 0]]}
    path = tmp_path / "a.aselmdb"
    with lmdb.open(str(path), subdir=False, map_size=2**20, lock=False) as file, file.begin(write=True) as transaction:
        transaction.put(b"nextid", zlib.compress(b"2"))
        transaction.put(b"1", zlib.compress(json.dumps(row).encode()))
    source, _ = read_file(path, required=("stress",))
    with pytest.raises(ValueError, match="a.aselmdb, record 0 cannot have a stress.*task.stress_weight=0"):
        source[0]
    assert read_file(path)[0][0].stress is None


def test_vacuum_in_a_periodic_box_is_noted(tmp_path: Path) -> None:
    box = molecule("CO", vacuum=5)
    box.pbc = True
    found = inspect_file(_files(tmp_path, [_with_stress(bulk("Cu")), _slab((True, True, True)), _with_stress(box)]))
    (note,) = [str(finding) for finding in found.findings if "vacuum" in finding.found]
    assert note.startswith("note: frames with a stress have more than 6.5 Å of vacuum (frames 1, 2)")
    assert "pbc F" in note


def test_one_volume_is_noted(tmp_path: Path) -> None:
    """Simulations in a fixed cell; not where one structure has another volume, and not without stress."""

    def noted(structures: list[ase.Atoms]) -> bool:
        notes = [str(found) for found in inspect_file(_files(tmp_path, structures)).findings]
        said = [note for note in notes if "all have one volume" in note]
        assert all("compressed, expanded and sheared cells, in steps of at most 2 % (docs/" in note for note in said)
        assert all("data.stress_sign=compression" in note and len(note) < 400 for note in said)
        return bool(said)

    hot = [bulk(metal, cubic=True) for metal in ("Cu", "Ag") for _ in range(4)]
    for seed, atoms in enumerate(hot):
        atoms.rattle(0.05, seed=seed)
    assert noted([_with_stress(atoms) for atoms in hot])
    assert not noted([_with_stress(atoms) for atoms in hot[:3]]), "too few to have had several"
    without = [atoms.copy() for atoms in hot]
    for atoms in without:
        atoms.calc = SinglePointCalculator(atoms, energy=-1.0, forces=np.full((4, 3), 0.1))
    assert not noted(without)
    single = [bulk(metal, cubic=True) for metal in ("Al", "Au", "Ni", "Pd", "Pt")]
    assert not noted([_with_stress(atoms) for atoms in [*hot[:4], *single]]), "most occur once"
    for change, same in ((1.0013, True), (1.0023, False)):  # of each length: 0.4 and 0.7 % of the volume
        wider = hot[1].copy()
        wider.set_cell(wider.cell * change, scale_atoms=True)
        assert noted([_with_stress(atoms) for atoms in [*hot, wider]]) == same
    strained = hot[0].copy()
    strained.set_cell(strained.cell * 1.01, scale_atoms=True)
    assert not noted([_with_stress(atoms) for atoms in [*hot, strained]])
    slabs = [_slab((True, True, True)) for _ in range(4)]
    assert not noted(slabs)


def test_layers_are_no_vacuum(data_dir: Path) -> None:
    found = inspect_file(data_dir / "mptrj_850.extxyz")
    (note,) = [finding for finding in found.findings if "vacuum" in finding.found]
    assert len(note.frames) < 20, "of 850, a few molecular crystals and layers far apart"


def test_the_cost_of_a_tiny_cell_is_said(tmp_path: Path) -> None:
    tiny = bulk("Cu")
    tiny.set_cell(tiny.cell * 0.1, scale_atoms=True)  # nm
    found = inspect_file(_files(tmp_path, [_with_stress(bulk("Cu")), _with_stress(tiny)]))
    (problem,) = [finding for finding in found.problems if "neighbours within 6 Å" in finding.found]
    assert problem.frames == (1,)
    assert "76,927 neighbours" in problem.found
    copper = read_file(tmp_path / "mine.extxyz")[0][0]
    assert crowding(copper) == ""
    singular = replace(copper, cell=np.eye(3)[[0, 1, 1]])
    assert crowding(singular) == "", "which is refused, not expensive"


def test_relaxation_says_the_cost_once_and_first() -> None:
    tiny = ase.Atoms("Cu", cell=np.eye(3) * 0.9, pbc=True)
    source, _ = structures_of([bulk("Cu"), tiny])
    said: list[str] = []
    settings = RelaxationSettings(steps=0)
    relaxer = Relaxer(Potential(trained()), source, settings, batch_atoms=1, say=said.append)
    while not relaxer.done:
        relaxer.step()
    assert len(said) == 1
    cutoff = trained().config.cutoff
    told = f"an atom has about {4 / 3 * np.pi * cutoff**3 / 0.9**3:,.0f} neighbours within {cutoff:g} Å"
    assert cutoff != 6 and said[0].startswith(f"structure 1: {told}")


def test_the_cost_is_that_of_the_models_cutoff() -> None:
    """A sphere of 12 Å holds eight times as many atoms as one of 6 Å; ordinary solids stay so."""
    tiny = ase.Atoms("Cu", cell=np.eye(3) * 0.9, pbc=True)
    assert "about 1,241 neighbours within 6 Å, images included; solids have 20 to 160" in crowding(tiny)
    assert "about 9,929 neighbours within 12 Å, images included; solids have 160 to 1280" in crowding(tiny, 12.0)
    assert crowding(bulk("C"), 12.0) == "", "diamond has 1,280"


def test_calculator_prediction_and_dynamics_say_the_cost(tmp_path: Path) -> None:
    """Before they pay it."""
    model = trained()
    tiny = ase.Atoms("Cu2", [[0, 0, 0], [0.6, 0.6, 0.6]], cell=np.eye(3) * 1.2, pbc=True)
    told = f"neighbours within {model.config.cutoff:g} Å"
    tiny.calc = DenskitCalculator(model)
    with pytest.warns(UserWarning, match=told):
        tiny.get_potential_energy()
    source, _ = structures_of([bulk("Cu"), tiny, tiny])
    with pytest.warns(UserWarning, match=f"frame 1: .*{told}") as warned:
        list(batches(model, source, 1))
    assert len([found for found in warned if told in str(found.message)]) == 1, "for the first"
    said: list[str] = []
    settings = DynamicsSettings(ensemble="nve", temperature=100.0, timestep=1.0)
    plan = DynamicsPlan(steps=0, folder=tmp_path / "md", settings=settings)
    molecular_dynamics(Potential(model), [tiny, tiny], plan, say=said.append)
    assert len([line for line in said if line.startswith("warning: Cu2: an atom has about") and told in line]) == 1


def test_left_handed_cells_are_ordinary() -> None:
    right = bulk("Cu", cubic=True)
    right.set_cell(right.cell.array @ np.array([[1.03, 0.01, 0], [0, 0.99, 0.02], [0, 0, 1.0]]), scale_atoms=True)
    left = right.copy()
    left.set_cell(left.cell.array[[1, 0, 2]])
    assert np.linalg.det(left.cell.array) < 0
    source, _ = structures_of([right, left])
    potential = Potential(trained(), stress=True)
    found = potential(collate([source[0], source[1]], torch.float64)[0])
    assert float(found.energy[0]) == pytest.approx(float(found.energy[1]), abs=1e-9)
    assert found.stress is not None
    np.testing.assert_allclose(found.stress[0], found.stress[1], atol=1e-10)
    one, other = relax(potential, source, RelaxationSettings(cell=CellRelaxation(), fmax=0.01))
    assert one.status == other.status == "converged"
    assert abs(np.linalg.det(one.cell)) == pytest.approx(abs(np.linalg.det(other.cell)), rel=1e-6)


def test_a_rough_factor_names_the_likely_unit(tmp_path: Path) -> None:
    """Labels far from harmonic: the factor is 2,400 where kbar are 1,602."""
    rng, frames = np.random.default_rng(0), []
    for seed in range(30):
        atoms = bulk("Cu", cubic=True)
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.03 * rng.normal(size=(3, 3))), scale_atoms=True)
        atoms.rattle(0.1, seed=seed)
        atoms.calc = EMT()
        labels = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        atoms.calc = SinglePointCalculator(atoms, **labels, stress=atoms.get_stress() * 10 / GPA)
        frames.append(atoms)
    (found,) = inspect_file(_files(tmp_path, frames)).problems
    assert "probably the stress is in kbar" in str(found)
    assert str(found).endswith("Say data.stress_unit=kbar")
