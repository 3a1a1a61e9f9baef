"""``fixtures/rows.aselmdb`` was written by ase-db-backends 0.11: five rows, of which the third was deleted."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import ase.io
import lmdb
import numpy as np
import pytest

from denskit.data import read_file

ROWS = Path(__file__).parents[1] / "fixtures" / "rows.aselmdb"


def test_rows_are_read() -> None:
    source, _ = read_file(ROWS, required=("energy", "forces"))
    assert [system.sid for system in source] == ["700", "701", "703", "704"]
    assert [system.fid for system in source] == [0, 1, 3, 4]
    assert [system.energy for system in source] == [-10.5, -13.75, -13.25, -9.5]
    assert source[0].fixed.tolist() == [True, False, False]
    assert not source[2].fixed.any()
    assert source[1].tags.tolist() == [0, 0, 0, 1]
    assert source[0].pbc.all() and source[0].atomic_numbers.tolist() == [29, 29, 29]
    np.testing.assert_array_equal(source[1].forces, np.full((4, 3), 0.25))
    np.testing.assert_array_equal(source[1].stress * 1000, [[0, 5, 4], [5, 1, 3], [4, 3, 2]])
    assert source[0].stress is None
    assert source[0].positions[0].tolist() == [1.2763277400417183, 0.7368881642872727, 5.0]


def _packed(values: np.ndarray) -> dict[str, Any]:
    return {"__ndarray__": [list(values.shape), str(values.dtype), values.ravel().tolist()]}


def test_rows_of_omat24(data_dir: Path, tmp_path: Path) -> None:
    """Real crystals of MPtrj in rows as OMat24 and sAlex have them: stress in eV/Å^3, Voigt's order, ASE's sign."""
    frames = ase.io.read(data_dir / "mptrj_850.extxyz", ":6")
    values: dict[str, Any] = {"nextid": 7, "deleted_ids": [], "metadata": {}}
    for number, atoms in enumerate(frames, 1):
        arrays = {"numbers": atoms.numbers, "positions": atoms.positions, "cell": atoms.cell.array, "pbc": atoms.pbc}
        arrays |= {"forces": atoms.get_forces(), "stress": atoms.get_stress()}
        values[str(number)] = {name: _packed(np.asarray(array)) for name, array in arrays.items()} | {
            "energy": atoms.get_potential_energy(), "calculator": "unknown", "calculator_parameters": {}, "ctime": 24.8,
            "mtime": 24.8, "user": "x", "unique_id": "0" * 32, "key_value_pairs": {}, "data": {"sid": f"agm{number}"},
        }  # fmt: skip
    source, _ = read_file(_written(tmp_path / "data.0000.aselmdb", values), required=("energy", "forces", "stress"))
    for system, atoms in zip(source, frames, strict=True):
        assert system.energy == atoms.get_potential_energy()
        np.testing.assert_array_equal(system.positions, atoms.positions)
        np.testing.assert_array_equal(system.forces, atoms.get_forces())
        np.testing.assert_allclose(system.stress, atoms.get_stress(voigt=False), atol=1e-15)


def _written(path: Path, values: dict[str, Any]) -> Path:
    with lmdb.open(str(path), subdir=False, map_size=2**20, lock=False) as file, file.begin(write=True) as transaction:
        for key, value in values.items():
            raw = value if isinstance(value, bytes) else zlib.compress(json.dumps(value).encode())
            transaction.put(key.encode(), raw)
    return path


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"not compressed", "key '1' is damaged"),
        (zlib.compress(b"not JSON"), "key '1' is damaged"),
        (zlib.compress(b"{}" * 999)[:-9], "key '1' is damaged.*truncated"),
        ({"numbers": [1]}, "record 0 is no row of structures .no 'positions'"),
        ({"positions": [[0, 0, 0]], "numbers": [1, 1], "cell": [[1] * 3] * 3, "pbc": [1] * 3}, "record 0 is no row"),
        ({"positions": {"__ndarray__": [[1, 3], "object", [0, 0, 0]]}, "numbers": [1]}, "record 0 is no row"),
        (4, "record 0 is missing"),
    ],
)  # fmt: skip
def test_damaged_rows_are_named(row: Any, message: str, tmp_path: Path) -> None:
    source, _ = read_file(_written(tmp_path / "a.aselmdb", {"nextid": 2, "1": row}))
    with pytest.raises(ValueError, match=rf"a.aselmdb.*{message}"):
        source[0]


def test_files_that_are_no_database(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a.aselmdb is no ASE database"):
        read_file(_written(tmp_path / "a.aselmdb", {"1": {}}))
    with pytest.raises(ValueError, match="b.aselmdb has no rows"):
        read_file(_written(tmp_path / "b.aselmdb", {"nextid": 2, "deleted_ids": [1]}))
    with pytest.raises(ValueError, match="c.aselmdb says that it has 999999999999 rows, but holds 2 keys"):
        read_file(_written(tmp_path / "c.aselmdb", {"nextid": 10**12, "1": {}}))


def test_a_folder_of_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copy(ROWS, tmp_path / f"{name}.aselmdb")
    source, _ = read_file(tmp_path)
    assert len(source) == 8
    assert source[5].energy == source[1].energy
