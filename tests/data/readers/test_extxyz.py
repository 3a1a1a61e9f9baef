"""Headers and frames of extxyz that ASE alone would read wrongly, in part, or not at all."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule

from denskit.data.inspection import inspect_file
from denskit.data.loading import read_file
from denskit.data.readers.ase_files import ase_options
from denskit.data.readers.extxyz import BadHeader, fields

ATOMS = "O 0 0 0 0 0 1\nH 0 0 0.96 0 0 -1\n"
COLUMNS = "Properties=species:S:1:pos:R:3:forces:R:3"


def _frame(header: str, atoms: str = ATOMS) -> str:
    return f"{len(atoms.splitlines())}\n{header}\n{atoms}"


def _file(folder: Path, text: str, name: str = "mine.xyz") -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize("empty", ['name=""', "name=", "name=''", "name={}", "name=[]", "name =", 'name= ""'])
def test_an_empty_value_leaves_the_next_field_alone(empty: str) -> None:
    for before, after in (("", " REF_energy=-100 energy=-4209"), ("energy=-4209 ", " REF_energy=-100"), ("a=b ", "")):
        found = fields(f"{before}{empty}{after}")
        assert found.pop("name") == ""
        assert found == fields(before + after), (before, empty, after)


def test_what_only_looks_empty_is_read_as_before() -> None:
    said = r"""energy= -4.5 unit = eV a="x= y=1" b='q="" r' c={s= t=} d="\"= u=" e="k=" path=a=b flag last= "v= w" """
    found = fields(said)
    assert found == {
        "energy": -4.5, "unit": "eV", "a": "x= y=1", "b": 'q="" r', "c": "s= t=", "d": '"= u=', "e": "k=",
        "path": "a=b", "flag": True, "last": "v= w",
    }  # fmt: skip
    assert fields('comment="it is = not closed') == {"comment": "it is = not closed"}


@pytest.mark.parametrize("empty", ['name=""', "name="])
def test_a_frame_keeps_cell_periodicity_unit_and_labels_beside_an_empty_value(tmp_path: Path, empty: str) -> None:
    lattice = 'Lattice="9 0 0 0 9 0 0 0 9"'
    for order in (f'{empty} {lattice} pbc="T T F"', f'{lattice} {empty} pbc="T T F"'):
        ((system,), _) = read_file(
            _file(tmp_path, _frame(f"{order} {empty} {COLUMNS} {empty} REF_energy=-1 energy=-2"))
        )
        np.testing.assert_array_equal(system.cell, 9 * np.eye(3))
        assert system.pbc.tolist() == [True, True, False]
        assert (system.energy, system.forces is None) == (-1.0, False)
    with pytest.raises(ValueError, match="says energy_unit=kcal/mol"):
        read_file(_file(tmp_path, _frame(f"{COLUMNS} energy=-2 {empty} energy_unit=kcal/mol")))


@pytest.mark.parametrize("name", ["pbc", "Properties"])
def test_empty_fields_of_the_format_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadHeader, match=f"its {name} is empty"):
        fields(f'energy=1 {name}=""')
    with pytest.raises(ValueError, match=f"mine.xyz cannot be read at its beginning: its {name} is empty"):
        read_file(_file(tmp_path, _frame(f'energy=1 {name}=""')))


def test_frames_after_a_blank_line_are_not_dropped_in_silence(tmp_path: Path) -> None:
    frame = _frame(f"{COLUMNS} energy=-1")
    assert len(read_file(_file(tmp_path, frame + frame + "\n \n\n"))[0]) == 2
    path = _file(tmp_path, frame + frame + "\n" + frame)
    with pytest.raises(
        ValueError, match=r"mine.xyz: frame 2, counted from 0, follows a blank line.*remove blank lines"
    ):
        read_file(path)
    with pytest.raises(ValueError, match="follows a blank line"):  # before a simulation of single frames
        ase_options(path)


@pytest.mark.parametrize("name", ["MINE.XYZ", "mine.ExtXYZ", "mine", "mine.XYZ.gz"])
def test_names_in_capitals_and_without_an_ending(tmp_path: Path, name: str) -> None:
    header = f'Lattice="9 0 0 0 9 0 0 0 9" {COLUMNS} energy=-1 stress="1 2 3 4 5 6" note= pbc="T T T"'
    path = _file(tmp_path, _frame(header), name)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    ((system,), _) = read_file(path)
    assert system.stress is not None
    np.testing.assert_array_equal(system.stress, [[1, 6, 5], [6, 2, 4], [5, 4, 3]])


@pytest.mark.parametrize("column", ["Z", "numbers", "atomic_numbers"])
def test_atomic_numbers_as_a_column(tmp_path: Path, column: str) -> None:
    text = _frame(f"Properties={column}:I:1:pos:R:3:forces:R:3 energy=-1", ATOMS.replace("O", "8").replace("H", "1"))
    ((system,), _) = read_file(_file(tmp_path, text))
    assert system.atomic_numbers.tolist() == [8, 1]


def test_atomic_numbers_beside_symbols_stay_a_column() -> None:
    columns = "species:S:1:pos:R:3:atomic_numbers:I:1"
    assert fields(f"Properties={columns}")["Properties"] == columns


@pytest.mark.parametrize(
    ("header", "old", "new", "said"),
    [
        (COLUMNS, "O ", "1 ", r"'1' is no symbol of an element"),
        (COLUMNS, "O ", "C1 ", r"'C1' is no symbol of an element.*\(C for C1\)"),
        ("Properties=species:I:1:pos:R:3:forces:R:3", "O ", "8 ", r"column species:I:1 holds numbers.*Z:I:1"),
    ],
)
def test_types_and_labels_in_place_of_symbols_are_named(
    tmp_path: Path, header: str, old: str, new: str, said: str
) -> None:
    with pytest.raises(ValueError, match=f"mine.xyz cannot be read at its beginning: .*{said}"):
        read_file(_file(tmp_path, _frame(header, ATOMS.replace(old, new))))


def test_periodic_without_a_cell_says_what_to_add(tmp_path: Path) -> None:
    path = _file(tmp_path, _frame(f'{COLUMNS} energy=-1 pbc="T T T"'))
    with pytest.raises(ValueError, match=r'in extxyz the field Lattice, perhaps absent.*pbc="F F F"'):
        read_file(path)
    with pytest.raises(ValueError, match=r'in extxyz the field Lattice, perhaps absent.*pbc="F F F"'):
        inspect_file(path)


def test_links_and_pipes_are_named(tmp_path: Path) -> None:
    (tmp_path / "link.xyz").symlink_to(tmp_path / "gone.xyz")
    with pytest.raises(FileNotFoundError, match=r"link.xyz is a broken link to .*gone.xyz$"):
        read_file(tmp_path / "link.xyz")
    os.mkfifo(tmp_path / "pipe.xyz")
    with pytest.raises(ValueError, match=r"pipe.xyz is a pipe or device.*write it to a file first"):
        read_file(tmp_path / "pipe.xyz")


def test_packed_files_of_formats_that_are_read_unpacked(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "water.db", molecule("H2O"))
    for name in ("water.db.gz", "water.npz.xz"):
        (tmp_path / name).write_bytes(gzip.compress((tmp_path / "water.db").read_bytes()))
        with pytest.raises(ValueError, match=rf"{name} is packed.*unpack it first"):
            read_file(tmp_path / name)
