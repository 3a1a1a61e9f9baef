"""OC20's raw downloads: pairs of extxyz and text, compressed or not, in order and out of order."""

from __future__ import annotations

import lzma
import pickle
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms

from denskit.data import DataConfig, read_file
from denskit.data.base import Source
from denskit.data.readers.formats import files_in

REFERENCES = [-10.25, -11.5, -12.75, -9.0, -8.5]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DENSKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _frame(number: int) -> ase.Atoms:
    rng = np.random.default_rng(number)
    n = 3 + number % 2
    cell = np.eye(3) * 7 + rng.normal(scale=0.1, size=(3, 3))
    atoms = ase.Atoms(["Cu", "Cu", "O", "H"][:n], positions=rng.uniform(0, 6, (n, 3)), cell=cell, pbc=True)
    atoms.set_tags([0, 1, 2, 2][:n])
    atoms.set_constraint(FixAtoms([0]))
    atoms.calc = SinglePointCalculator(atoms, energy=-12.0 - number, forces=rng.normal(size=(n, 3)))
    return atoms


def _write(folder: Path, frames: int = 5, stem: str = "0", *, packed: bool = True) -> Path:
    """As published: ASE's extxyz with move_mask, tags and forces, and one line for each frame."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{stem}.extxyz"
    columns = ["symbols", "positions", "move_mask", "tags", "forces"]
    ase.io.write(path, [_frame(number) for number in range(frames)], columns=columns)
    text = "".join(f"random{77 + i // 2},frame{i % 2},{REFERENCES[i]}\n" for i in range(frames))
    path.with_suffix(".txt").write_text(text)
    if packed:
        for file in (path, path.with_suffix(".txt")):
            Path(f"{file}.xz").write_bytes(lzma.compress(file.read_bytes()))
            file.unlink()
    return folder


def _same(source: Source, index: int, energy: float) -> None:
    system, atoms = source[index], _frame(index)
    np.testing.assert_allclose(system.positions, atoms.positions, atol=1e-7)
    np.testing.assert_allclose(system.forces, atoms.calc.results["forces"], atol=1e-7)
    np.testing.assert_allclose(system.cell, atoms.cell.array, atol=1e-12)
    assert system.atomic_numbers.tolist() == atoms.numbers.tolist()
    assert system.tags.tolist() == atoms.get_tags().tolist()
    assert system.fixed.tolist() == [True] + [False] * (len(atoms) - 1)
    assert system.energy == pytest.approx(energy, abs=1e-7)
    assert (system.sid, system.fid, system.group) == (str(77 + index // 2), index % 2, str(77 + index // 2))


@pytest.mark.parametrize("packed", [True, False])
def test_frames_in_any_order(packed: bool, tmp_path: Path) -> None:
    source, _ = read_file(_write(tmp_path / "s2ef", packed=packed), required=("energy", "forces"))
    assert len(source) == 5
    for index in (4, 0, 3, 3, 1, 2):
        _same(source, index, -12.0 - index - REFERENCES[index])
    for index, system in enumerate(source):
        assert system.energy == source[index].energy
        np.testing.assert_array_equal(system.positions, source[index].positions)


def test_energies_are_referenced_unless_totals_are_asked_for(tmp_path: Path) -> None:
    folder = _write(tmp_path / "s2ef")
    total, _ = read_file(folder, DataConfig(energies="total"))
    assert [system.energy for system in total] == [-12.0 - index for index in range(5)]


def test_reading_in_order_keeps_nothing_and_out_of_order_unpacks_once(tmp_path: Path, cache: Path) -> None:
    source, _ = read_file(_write(tmp_path / "s2ef"))
    assert len(list(source)) == 5
    assert [system.index for system in source.iterate(2, 4)] == [2, 3]
    assert not cache.exists()
    source[3]
    (unpacked,) = cache.rglob("*.extxyz")
    before = unpacked.stat().st_mtime_ns
    again, _ = read_file(tmp_path / "s2ef")
    assert again[2].energy == source[2].energy
    assert unpacked.stat().st_mtime_ns == before
    assert pickle.loads(pickle.dumps(source))[1].energy == source[1].energy


def test_several_files_follow_their_names(tmp_path: Path) -> None:
    folder = _write(_write(tmp_path / "s2ef", 2, "1"), 3, "0")
    source, _ = read_file(folder)
    assert len(source) == 5
    assert [len(system) for system in source] == [3, 4, 3, 3, 4]


def test_a_single_file(tmp_path: Path) -> None:
    source, _ = read_file(_write(tmp_path / "s2ef") / "0.extxyz.xz")
    assert len(source) == 5


@pytest.mark.parametrize("note", ["PBE, 500 eV, made by Anna\n", "frame 0 energy\n" * 5, ""])
def test_a_note_beside_a_file_is_no_text_of_oc20(note: str, tmp_path: Path) -> None:
    folder = _write(tmp_path / "mine", packed=False)
    (folder / "0.txt").write_text(note)
    source, _ = read_file(folder / "0.extxyz", required=("energy", "forces"))
    assert [system.energy for system in source] == [-12.0 - index for index in range(5)]
    assert files_in(folder) == [folder / "0.extxyz"]


def _cut_text(folder: Path) -> None:
    (folder / "0.txt").write_text("random77,frame0,1.0\n")


def _cut_xz(folder: Path) -> None:
    path = folder / "0.extxyz.xz"
    path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.parametrize(
    ("packed", "change", "message"),
    [
        (True, _cut_xz, r"0.extxyz.xz, record \d of 5.*truncated"),
        (False, _cut_text, "0.extxyz has more frames than the 1 lines of .*0.txt"),
        (False, lambda f: (f / "0.txt").write_text("random1\n" * 5), "record 0 of 5 cannot be used"),
        (False, lambda f: (f / "0.txt").write_text("random1,frame0\n" * 5), "no reference energy.*data.energies=total"),
        (False, lambda f: _replace(f, "move_mask", "moves"), "no column move_mask"),
        (False, lambda f: _replace(f, "forces:R:3", "forces:R:2"), "record 0 of 5 cannot be used"),
        (False, lambda f: _replace(f, "Cu ", "Qq "), "record 0 of 5 cannot be used .no .Qq"),
        (False, lambda f: _shorten(f), "record 4 of 5 is truncated"),
        (False, lambda f: _replace(f, "Lattice", "Lettice"), "record 0 of 5 cannot be used .no .Lattice"),
    ],
)  # fmt: skip
def test_damage_is_named(packed: bool, change: Any, message: str, tmp_path: Path) -> None:
    folder = _write(tmp_path / "s2ef", packed=packed)
    change(folder)
    source, _ = read_file(folder)
    with pytest.raises(ValueError, match=message):
        list(source)
    with pytest.raises(ValueError, match=message):
        [source[index] for index in range(len(source))]


def _replace(folder: Path, old: str, new: str) -> None:
    path = folder / "0.extxyz"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _shorten(folder: Path) -> None:
    path = folder / "0.extxyz"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))


def test_the_text_must_be_there_and_whole(tmp_path: Path) -> None:
    folder = _write(tmp_path / "s2ef")
    text = folder / "0.txt.xz"
    whole = text.read_bytes()
    text.write_bytes(whole[:-20])
    with pytest.raises(ValueError, match=r"0.txt.xz is truncated"):
        read_file(folder)
    text.write_bytes(lzma.compress(b"\n"))
    with pytest.raises(ValueError, match="names no frames"):
        read_file(folder)
    text.unlink()
    with pytest.raises(ValueError, match=r"OC20's downloads need their texts, N.txt.xz beside N.extxyz.xz"):
        read_file(folder)
    _write(folder, stem="1")
    with pytest.raises(FileNotFoundError, match=r"no file 0.txt or .txt.xz beside"):
        read_file(folder)


def test_two_kinds_in_a_folder_are_refused(tmp_path: Path) -> None:
    _write(tmp_path / "s2ef", packed=False)
    _write(tmp_path / "s2ef", stem="1")
    with pytest.raises(ValueError, match=r"1 \*.extxyz.*1 \*.extxyz.xz|1 \*.extxyz, 1"):
        read_file(tmp_path / "s2ef")
