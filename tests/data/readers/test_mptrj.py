"""The published JSON of MPtrj, made from real frames of it, against the same frames as extxyz."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase.build import bulk

from denskit.data import DataConfig, read_file
from denskit.data.readers import pymatgen_json
from denskit.units import GPA


def _frame(atoms: ase.Atoms, energy: float, forces: np.ndarray, stress: np.ndarray) -> dict[str, Any]:
    sites = [
        {"species": [{"element": symbol, "occu": 1}], "abc": scaled.tolist(), "label": symbol, "properties": {}}
        for symbol, scaled in zip(atoms.symbols, atoms.get_scaled_positions(wrap=False), strict=True)
    ]
    return {
        "structure": {"@class": "Structure", "lattice": {"matrix": atoms.cell.array.tolist()}, "sites": sites},
        "corrected_total_energy": energy,
        "uncorrected_total_energy": energy - 1,
        "force": forces.tolist(),
        "stress": (-stress / GPA * 10).tolist(),
        "magmom": None,
    }


def test_the_published_form_holds_the_same_frames(data_dir: Path, tmp_path: Path) -> None:
    frames = ase.io.read(data_dir / "mptrj_850.extxyz", ":12")
    document: dict[str, Any] = {}
    for atoms in frames:
        labels = atoms.calc.results
        made = _frame(atoms, labels["energy"], labels["forces"], atoms.get_stress(voigt=False))
        document.setdefault(atoms.info["mptrj_traj_id"], {})[atoms.info["mptrj_snapshot_id"]] = made
    path = tmp_path / "MPtrj.json"
    path.write_text(json.dumps(document))
    found, messages = read_file(path, required=("energy", "forces", "stress"))
    by_name = {system.sid: system for system in found}
    assert len(by_name) == 12
    assert "energy from corrected_total_energy" in messages[0]
    for atoms in frames:
        system = by_name[atoms.info["mptrj_snapshot_id"]]
        assert system.group == atoms.info["mptrj_traj_id"]
        assert system.energy == pytest.approx(atoms.get_potential_energy())
        np.testing.assert_array_equal(system.atomic_numbers, atoms.numbers)
        np.testing.assert_allclose(system.positions, atoms.positions, atol=1e-6)
        np.testing.assert_allclose(system.forces, atoms.get_forces(), atol=1e-12)
        np.testing.assert_allclose(system.stress, atoms.get_stress(voigt=False), atol=1e-9)
    other, _ = read_file(path, DataConfig(energy_key="uncorrected_total_energy"))
    assert other[0].energy == pytest.approx(found[0].energy - 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = _frame(bulk("Cu"), -3.7, np.zeros((1, 3)), np.zeros((3, 3)))
    file = tmp_path / "MPtrj.json"
    file.write_text(json.dumps({f"mp-{number}": {f"mp-{number}-0-0": made} for number in range(30)}, indent=1))
    return file


@pytest.mark.parametrize("piece", [1, 7, 400, 2**20])
def test_pieces_of_any_size(path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(pymatgen_json, "_PIECE", piece)
    found, _ = read_file(path)
    assert [system.group for system in found] == [f"mp-{number}" for number in range(30)]


def test_a_packed_file_is_read_as_an_unpacked_one(path: Path) -> None:
    packed = path.with_name("MPtrj.json.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    found, messages = read_file(packed)
    assert [system.sid for system in found] == [system.sid for system in read_file(path)[0]]
    assert "MPtrj.json.gz: MPtrj, 30 structures of 30 materials" in messages[0]


def test_a_truncated_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(ValueError, match="MPtrj.json is truncated, or no file of MPtrj"):
        read_file(path)


def test_a_frame_without_a_structure_is_named(path: Path) -> None:
    path.write_text('{"mp-1": {"mp-1-0-0": {"force": []}}}')
    with pytest.raises(ValueError, match="frame mp-1-0-0 cannot be read.*structure"):
        read_file(path)


def test_settings_that_would_be_ignored_are_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="MPtrj has its own names and units"):
        read_file(path, DataConfig(stress_unit="GPa"))
    with pytest.raises(ValueError, match="leave out data.units, data.forces_unit"):
        read_file(path, DataConfig(forces_unit="Ry/Bohr"))
