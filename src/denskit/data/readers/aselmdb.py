"""``.aselmdb`` files: ASE databases in an LMDB file, every row compressed JSON.  Read here without their package.

Keys are "1", "2", ... below ``nextid``, less ``deleted_ids``; rows follow ``ase.db.row``.  A row without constraints
has no fixed atoms.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from denskit.batch import System
from denskit.data.base import Shard, electrons_in, full_stress
from denskit.data.readers.lmdb import LmdbFile
from denskit.reading.budget import naming
from denskit.reading.documents import inflate_json


class AseLmdbShard(Shard):
    """One ``.aselmdb`` file.  Raises ValueError naming the file and the record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = LmdbFile(path)
        following = self._json("nextid")
        deleted = self._json("deleted_ids") or []
        if not isinstance(following, int) or following >= 2**63 or not isinstance(deleted, list):
            raise ValueError(f"{path} is no ASE database in LMDB: its key 'nextid' holds {following!r:.99}")
        with naming(path, "is no ASE database in LMDB: its key 'deleted_ids' holds more than integers"):
            gone = np.unique(np.array(deleted, dtype=np.int64))
        if (count := following - 1 - len(gone)) > self.file.entries:
            said = f"{path} says that it has {count} rows, but holds {self.file.entries} keys"
            raise ValueError(f"{said}: it was not written to its end. Copy or download it again")
        self.ids = np.setdiff1d(np.arange(1, following, dtype=np.int64), gone)
        if len(self.ids) == 0:
            raise ValueError(f"{path} has no rows")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, record: int) -> System:
        row = self._json(str(self.ids[record]))
        where = f"{self.path}, record {record}"
        if not isinstance(row, dict):
            raise ValueError(f"{where} is missing: no row {self.ids[record]}")
        with naming(where, "is no row of structures"):
            return _system(row)

    def fields(self, index: int) -> dict[str, Any]:
        """The row's data and key-value pairs."""
        return _fields(self._json(str(self.ids[index])))

    def _json(self, key: str) -> Any:
        raw = self.file.get(key)
        return None if raw is None else inflate_json(raw, f"{self.path}, key {key!r}", _array)


def _array(value: dict[str, Any]) -> Any:
    """ASE's JSON for arrays: shape, dtype, numbers in one list."""
    if "__ndarray__" not in value:
        return value
    shape, dtype, numbers = value["__ndarray__"]
    if dtype not in ("float64", "float32", "int64", "int32", "int8", "uint8", "bool"):
        return None
    return np.array(numbers, dtype=dtype).reshape(shape)


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    return {**(row.get("data") or {}), **(row.get("key_value_pairs") or {})}


def _system(row: dict[str, Any]) -> System:
    positions = np.asarray(row["positions"], dtype=np.float64).reshape(-1, 3)
    n = len(positions)
    named = _fields(row)
    energy, forces, stress, fid = row.get("energy"), row.get("forces"), row.get("stress"), named.get("fid")
    sid = str(named.get("sid", ""))
    return System(
        positions=positions,
        atomic_numbers=np.asarray(row["numbers"], dtype=np.int64),
        cell=np.asarray(row["cell"], dtype=np.float64).reshape(3, 3),
        pbc=np.asarray(row["pbc"], dtype=bool).reshape(3),
        fixed=_fixed(row.get("constraints") or [], n),
        tags=np.asarray(row.get("tags", np.zeros(n)), dtype=np.int64),
        energy=None if energy is None else float(np.asarray(energy).reshape(())),
        forces=None if forces is None else np.asarray(forces, dtype=np.float64).reshape(n, 3),
        stress=None if stress is None else full_stress(stress),
        sid=sid,
        group=sid,
        fid=None if fid is None else int(fid),
        electrons=electrons_in(named),
    )


def _fixed(constraints: list[Any] | str, n: int) -> np.ndarray:
    """Atoms held by ASE's FixAtoms; constraints that hold an atom only partly leave it free."""
    fixed = np.zeros(n, dtype=bool)
    for constraint in json.loads(constraints) if isinstance(constraints, str) else constraints:
        if constraint["name"] == "FixAtoms":
            fixed[np.asarray(constraint["kwargs"]["indices"], dtype=np.int64)] = True
    return fixed
