"""The published JSON of MatPES, made from real frames of MPtrj, against the same frames as extxyz."""

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
from denskit.units import GPA


def entry(atoms: ase.Atoms, name: str, energy: float, forces: np.ndarray, stress: np.ndarray) -> dict[str, Any]:
    """As on matpes.ai; stress: 6, eV/Å^3 in ASE's sign."""
    sites = [
        {"species": [{"element": symbol, "occu": 1}], "abc": scaled.tolist(), "properties": {"magmom": 0.0}, "xyz": []}
        for symbol, scaled in zip(atoms.symbols, atoms.get_scaled_positions(wrap=False), strict=True)
    ]
    return {
        "builder_meta": {"license": None}, "nsites": len(atoms), "elements": sorted(set(atoms.symbols)),
        "structure": {"@class": "Structure", "lattice": {"matrix": atoms.cell.array.tolist()}, "sites": sites},
        "energy": energy, "forces": forces.tolist(), "stress": (-stress / GPA * 10).tolist(), "matpes_id": name,
        "bandgap": 0.0, "functional": "PBE", "provenance": {"original_mp_id": "mp-30496", "md_temperature": 300.0},
    }  # fmt: skip


def _write(path: Path, entries: list[dict[str, Any]]) -> Path:
    text = "\n".join(map(json.dumps, entries)) if ".jsonl" in path.name else json.dumps(entries)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["MatPES-PBE.json", "MatPES-PBE.json.gz", "MatPES-PBE.jsonl"])
def test_the_published_form_holds_the_same_frames(data_dir: Path, tmp_path: Path, name: str) -> None:
    frames = ase.io.read(data_dir / "mptrj_850.extxyz", ":8")
    labels = [(atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()) for atoms in frames]
    entries = [entry(atoms, f"matpes-{place}", *labels[place]) for place, atoms in enumerate(frames)]
    found, messages = read_file(_write(tmp_path / name, entries), required=("energy", "forces", "stress"))
    assert "MatPES, 8 structures of 1 material; energy from energy, stress from VASP's in kbar" in messages[0]
    assert [system.sid for system in found] == [f"matpes-{place}" for place in range(8)]
    for system, atoms, (energy, forces, _) in zip(found, frames, labels, strict=True):
        assert system.group == "mp-30496"
        assert system.energy == energy
        np.testing.assert_array_equal(system.atomic_numbers, atoms.numbers)
        np.testing.assert_allclose(system.positions, atoms.positions, atol=1e-10)
        np.testing.assert_array_equal(system.forces, forces)
        np.testing.assert_allclose(system.stress, atoms.get_stress(voigt=False), atol=1e-12)


def test_bad_files_are_named(tmp_path: Path) -> None:
    good = entry(bulk("Cu"), "matpes-1", -3.7, np.zeros((1, 3)), np.zeros(6))
    path = _write(tmp_path / "a.json", [good, good])
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(ValueError, match="a.json is truncated, or no file of MatPES"):
        read_file(path)
    with pytest.raises(ValueError, match="entry matpes-1 cannot be read.*lattice"):
        read_file(_write(tmp_path / "b.json", [good | {"structure": {"sites": []}}]))
    with pytest.raises(ValueError, match="MatPES has its own names and units"):
        read_file(_write(tmp_path / "c.json", [good]), DataConfig(stress_unit="GPa"))
