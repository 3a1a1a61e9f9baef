"""Relaxed energies: references, errors by the published formulas, submission files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase.build import add_adsorbate, fcc111
from ase.geometry import find_mic

from denskit.batch import System
from denskit.data import DataConfig
from denskit.data.loading import read_file
from denskit.evaluation.submission import merge_submissions
from denskit.simulation.relaxation.is2re import errors, first_frames, write_submission
from denskit.simulation.relaxation.results import Relaxed, refused
from simulation.morse import system_of


def slab(sid: str) -> System:
    """Oxygen on a slanted cell of copper, lower atoms fixed."""
    atoms = fcc111("Cu", (2, 2, 2), vacuum=5.0, periodic=True)
    add_adsorbate(atoms, "O", 1.2, "fcc")
    system = system_of(atoms)
    return replace(system, fixed=system.positions[:, 2] < 6.0, sid=sid)


def outcome(index: int, system: System, energy: float | None, positions: np.ndarray | None = None) -> Relaxed:
    where = system.positions if positions is None else positions
    return Relaxed(
        index=index, status="converged", message="", moves=1, energy=energy, fmax=0.0, positions=where, cell=system.cell
    )


def test_energy_errors() -> None:
    source = [replace(slab(str(i)), relaxed_energy=-3.0) for i in range(4)]
    results = [outcome(i, source[i], energy) for i, energy in enumerate((-3.019, -3.0, -2.9, None))]
    found = errors(results, source)
    assert found["references"] == 4
    assert found["without_energy"] == 1
    assert found["energy_mae_meV"] == pytest.approx((19 + 0 + 100) / 3)
    assert found["energy_within_threshold"] == 0.5


def test_distances_are_periodic_and_of_free_atoms() -> None:
    generator = np.random.default_rng(0)
    reference = slab("0")
    moved = reference.positions + generator.normal(scale=0.1, size=reference.positions.shape)
    moved[reference.fixed] += 3.0  # does not count
    expected = find_mic((moved - reference.positions)[~reference.fixed], reference.cell, reference.pbc)[1].mean()
    shifts = generator.integers(-2, 3, size=(len(moved), 3)) * reference.pbc  # whole lattice vectors: the same place
    source = [replace(reference, relaxed_positions=reference.positions)]
    found = errors([outcome(0, reference, 0.0, moved + shifts @ reference.cell)], source)
    assert found["distance_mean_A"] == pytest.approx(expected)
    thresholds = np.arange(0.01, 0.5, 0.001)
    assert len(thresholds) == 490
    assert found["distance_within_threshold"] == pytest.approx(sum(expected < t for t in thresholds) / 490)


def test_no_references_no_errors() -> None:
    assert errors([outcome(0, slab("0"), -1.0)], [slab("0")]) == {}


def test_submission_is_sorted_by_id_as_text(tmp_path: Path) -> None:
    source = [replace(slab(sid), positions=slab(sid).positions + number) for number, sid in enumerate(("9", "10", "2"))]
    results = [outcome(0, source[0], -0.5), outcome(1, source[1], None), outcome(2, source[2], -2.5)]
    assert write_submission(results, source, tmp_path) == ["10"]
    with np.load(tmp_path / "is2re.npz", allow_pickle=False) as arrays:
        assert arrays["ids"].tolist() == ["2", "9"]
        assert arrays["energy"].tolist() == [-2.5, -0.5]
        assert arrays["energy"].dtype == np.float32
    with np.load(tmp_path / "is2rs.npz", allow_pickle=False) as arrays:
        assert arrays["ids"].tolist() == ["10", "2", "9"]
        parts = np.split(arrays["pos"], arrays["chunk_idx"])
        for part, place in zip(parts, (1, 2, 0), strict=True):
            np.testing.assert_allclose(part, source[place].positions, rtol=1e-6)


def test_submission_needs_each_sid_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="structure 0 has no sid"):
        write_submission([outcome(0, slab(""), 0.0)], [slab("")], tmp_path)
    with pytest.raises(ValueError, match="two structures have the sid 5"):
        write_submission([outcome(i, slab("5"), 0.0) for i in range(2)], [slab("5")] * 2, tmp_path)
    unreadable = refused(0, None, "refused", "truncated")
    assert write_submission([unreadable, outcome(1, slab("1"), 0.0)], [slab("0"), slab("1")], tmp_path) == [
        "structure 0"
    ]


def test_merged_splits(tmp_path: Path) -> None:
    for split, energy in (("id", -1.0), ("ood_ads", -2.0)):
        write_submission([outcome(0, slab("7"), energy)], [slab("7")], tmp_path / split)
    merge_submissions({split: tmp_path / split / "is2re.npz" for split in ("id", "ood_ads")}, tmp_path / "all.npz")
    with np.load(tmp_path / "all.npz", allow_pickle=False) as arrays:
        assert sorted(arrays.files) == ["id_energy", "id_ids", "ood_ads_energy", "ood_ads_ids"]
        assert arrays["ood_ads_energy"].tolist() == [-2.0]


def test_first_frames_of_relaxations() -> None:
    def frame(sid: str, fid: int, energy: float) -> System:
        return replace(slab(sid), fid=fid, energy=energy, positions=slab(sid).positions + fid)

    mixed = [frame("a", 2, -2.0), frame("b", 0, -5.0), frame("a", 0, 0.0), frame("b", 9, -6.0), frame("a", 1, -1.0)]
    mixed = [replace(system, index=place) for place, system in enumerate(mixed)]
    first = first_frames(mixed)
    assert [(system.sid, system.fid, system.relaxed_energy) for system in first] == [("b", 0, -6.0), ("a", 0, -2.0)]
    assert [system.index for system in first] == [1, 2], "in the order of the file, which is read once"
    np.testing.assert_array_equal(first[1].relaxed_positions, mixed[0].positions)
    with pytest.raises(ValueError, match="no sid or no fid"):
        first_frames([slab("a")])


def test_frames_that_cannot_be_read_are_left_out_and_named() -> None:
    class Broken(list[System]):
        def __getitem__(self, index: int) -> System:  # type: ignore[override]
            if index == 1:
                raise ValueError("s.lmdb, record 1: truncated")
            return super().__getitem__(index)

    frames = [replace(slab(sid), fid=fid, energy=-1.0 * fid) for sid in "ab" for fid in range(3)]
    with pytest.warns(UserWarning, match=r"1 of 6 frames cannot be read .* takes its place: s\.lmdb, record 1: trunc"):
        first = first_frames(Broken(frames))
    assert [(system.sid, system.fid, system.relaxed_energy) for system in first] == [("a", 0, -2.0), ("b", 0, -2.0)]


def test_relaxations_of_oc20(data_dir: Path) -> None:
    frames, _ = read_file(data_dir / "oc20_s2ef_train.npz", DataConfig())
    first = first_frames(frames)
    assert len(first) == 25
    for system in first:
        assert system.energy is not None and system.relaxed_energy is not None
        assert system.relaxed_energy < system.energy
        assert system.relaxed_positions is not None
        np.testing.assert_allclose(system.relaxed_positions[system.fixed], system.positions[system.fixed], atol=1e-4)
    at_the_start = [outcome(i, system, system.energy) for i, system in enumerate(first)]
    at_the_end = [outcome(i, s, s.relaxed_energy, s.relaxed_positions) for i, s in enumerate(first)]
    assert errors(at_the_end, first)["energy_mae_meV"] == 0
    assert errors(at_the_end, first)["distance_within_threshold"] == 1
    assert errors(at_the_start, first)["energy_mae_meV"] > 100
