"""Denskit's own format for many structures: a folder of safetensors files, read one structure at a time.

    FOLDER/index.json                 numbers, units, inputs, and each shard's file with its SHA-256
    FOLDER/sizes.npy                  [B] int32, atoms of each structure; mapped, for balanced batches
    FOLDER/shard-00000.safetensors    structures 0 .. S - 1; every shard but the last has the same number S

A shard holds n structures, N atoms, as columns: atoms one structure behind the other, ``starts`` [n + 1] saying where
each begins.  Lengths in Å, energies in eV, forces in eV/Å, stress in eV/Å^3 (ASE's sign).

    starts [n + 1] I64, cell [n, 3, 3] F64, pbc [n, 3] BOOL, denoise [n] BOOL (False: DeNS never corrupts it)
    positions [N, 3] F32 or F64, atomic_numbers [N] U8, fixed [N] BOOL, tags [N] I64 or U8
    energy [n] F64, forces [N, 3], stress [n, 3, 3], relaxed_energy [n] F64, relaxed_positions [N, 3]: a column that no
        structure has is left out; else has_energy [n] BOOL, ... say who has it, and the others hold zeros
    fid [n] I64, with has_fid;  sid, group: UTF-8 bytes U8, with sid_starts, group_starts [n + 1] I64
    charge, total_charge, spin, total_spin, multiplicity, spin_multiplicity [n] F64 (NaN: not said), of_model [n] BOOL
        (labels are predictions), unconverged [n] BOOL (their electrons did not converge): left out where none says it

Numbers are kept exactly: F32 and U8 stand only where they lose nothing.  Why this form: safetensors holds plain numbers
(loading it cannot run code), every language reads it, and the offset of any structure follows from ``starts``, so a
structure costs a few small reads and no memory, in data of any size.  Reads are ``pread`` calls and no mapping of the
file, because mapped pages count as memory of the process.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from denskit.batch import System
from denskit.data.base import ELECTRONS, MARKS, Shard, electrons_in
from denskit.files import atomic_write
from denskit.reading.arrays import read_mapped
from denskit.reading.budget import naming
from denskit.reading.documents import read_json
from denskit.reading.remote import fetch_missing, is_copy

FORMAT = "denskit-shards-1"
INDEX, SIZES = "index.json", "sizes.npy"
PROGRESS = "progress.jsonl"  # of a conversion that has not finished
OPEN_FILES = 256  # shards kept open at once; processes are commonly allowed 1024 files
LONGEST_HEADER = 1 << 20  # bytes; ours have about 2,000
_TYPES = {"F64": np.float64, "F32": np.float32, "I64": np.int64, "U8": np.uint8, "BOOL": np.bool_}
_OF_ATOMS = ("positions", "atomic_numbers", "fixed", "tags", "forces", "relaxed_positions")
_SHAPES: dict[str, tuple[int, ...]] = {  # of a row of each column
    "cell": (3, 3), "pbc": (3,), "denoise": (), "energy": (), "stress": (3, 3), "relaxed_energy": (), "fid": (),
    "positions": (3,), "atomic_numbers": (), "fixed": (), "tags": (), "forces": (3,), "relaxed_positions": (3,),
}  # fmt: skip
LABELS = ("energy", "stress", "relaxed_energy", "fid", "forces", "relaxed_positions")  # columns that may be absent
_NUMBERS = 256  # values of an atomic number in a column
_WORDS = ("sid", "group")


def write_shard(path: Path, systems: Sequence[System]) -> None:
    """Write structures (at least one) as one shard, atomically."""
    columns: dict[str, np.ndarray] = {"starts": _starts([len(system) for system in systems])}
    for name, shape in _SHAPES.items():
        values = [getattr(system, name) for system in systems]
        if name in LABELS:
            has = np.array([value is not None for value in values])
            if not has.any():
                continue
            columns[f"has_{name}"] = has
            empty = [np.zeros((len(system), *shape) if name in _OF_ATOMS else shape) for system in systems]
            values = [zero if value is None else value for value, zero in zip(values, empty, strict=True)]
        columns[name] = np.concatenate(values) if name in _OF_ATOMS else np.stack(values)
    said = {name: np.array([dict(system.electrons).get(name, np.nan) for system in systems]) for name in ELECTRONS}
    columns |= {name: values for name, values in said.items() if not np.isnan(values).all()}
    marks = {mark: np.array([getattr(system, mark) for system in systems]) for mark in MARKS}
    columns |= {mark: values for mark, values in marks.items() if values.any()}
    for name in _WORDS:
        words = [getattr(system, name).encode() for system in systems]
        if any(words):
            columns[f"{name}_starts"] = _starts([len(word) for word in words])
            columns[name] = np.frombuffer(b"".join(words), dtype=np.uint8)
    # contiguous: safetensors would store the numbers of an array in Fortran's order in that order
    stored = {name: np.ascontiguousarray(_narrow(name, values)) for name, values in columns.items()}
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(save(stored, metadata={"format": FORMAT}))


def _starts(counts: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _narrow(name: str, values: np.ndarray) -> np.ndarray:
    """The values in the smallest type of the column that keeps them exactly."""
    if name in ("positions", "forces", "relaxed_positions"):
        with np.errstate(over="ignore"):
            small = values.astype(np.float32)
        return small if np.array_equal(small, values) else values
    if name == "atomic_numbers" or (name == "tags" and values.min() >= 0 and values.max() <= 255):
        return values.astype(np.uint8)
    return values.astype(np.int64) if name == "fid" else values


@dataclass(frozen=True)
class ShardFile(Shard):
    """The structures of one shard, decoded one at a time.

    May be pickled, used after a fork and by several threads.  Errors, ValueError, name the file and the record.
    """

    path: Path
    count: int  # structures
    size: int  # bytes
    sha256: str = ""  # of a shard that is fetched when it is first read

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, record: int) -> System:
        if not 0 <= record < self.count:
            raise IndexError(f"record {record} of {self.path}, which has {self.count}")
        return _open(self).system(record)

    @property
    def sizes(self) -> np.ndarray:
        """Atoms of each structure [n] int64."""
        return np.diff(_open(self).rows("starts", 0, self.count + 1))

    @property
    def lists_elements(self) -> bool:
        """Yes; but a shard that is fetched when it is first read is not fetched for its elements."""
        return not is_copy(self.path.parent)

    def elements_of_structures(self) -> list[frozenset[int]]:
        """The atomic numbers that occur in each structure [n], from their column alone."""
        return _open(self).elements()


def open_shards(folder: Path) -> tuple[tuple[ShardFile, ...], np.ndarray]:
    """The shards of a folder and the atoms of each structure [B] (mapped), all checked against the index.

    No shard is read; those of a folder elsewhere arrive when they are.  Raises ValueError for a folder that is not
    whole, and for an index of another kind.
    """
    index = read_index(folder)
    shards = tuple(
        ShardFile(folder / shard["file"], shard["structures"], shard["bytes"], shard["sha256"])
        for shard in index["shards"]
    )
    arriving = is_copy(folder)
    for shard in shards:
        found = shard.path.stat().st_size if shard.path.is_file() else None
        if found != shard.size and not (arriving and found is None):
            state = "is missing" if found is None else f"has {found} bytes"
            raise ValueError(f"{shard.path} {state}; {INDEX} says {shard.size} bytes. Copy or convert it again")
    if not (folder / SIZES).is_file():
        raise ValueError(f"{folder / SIZES} is missing. Copy or convert the folder again")
    sizes = read_mapped(folder / SIZES)
    if sizes.shape != (index["structures"],) or sizes.dtype != np.int32:
        raise ValueError(f"{folder / SIZES} has {sizes.dtype} {sizes.shape}; wanted int32 ({index['structures']},)")
    return shards, sizes


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a folder of shards.  Raises ValueError where it is damaged or of another format."""
    path = folder / INDEX
    with naming(path, "is not an index of shards"):
        index: dict[str, Any] = read_json(path)
        said = index["format"]
        for shard in index["shards"]:
            if Path(shard["file"]).name != shard["file"]:
                raise ValueError(f"file {shard['file']!r} lies elsewhere")
            for key in ("structures", "bytes"):
                if type(shard[key]) is not int or shard[key] < 1:
                    raise ValueError(f"{key} is {shard[key]!r}")
            shard["sha256"].encode()
        if not index["shards"] or index["structures"] != sum(shard["structures"] for shard in index["shards"]):
            raise ValueError("the shards do not add up")
    if said != FORMAT:
        raise ValueError(f"{path} is of format {said}; this version of Denskit reads {FORMAT}")
    return index


@lru_cache(maxsize=OPEN_FILES)
def _open(shard: ShardFile) -> _Columns:
    """An open shard.  One that falls out of the cache is closed when its last reader is done with it."""
    fetch_missing(shard.path, shard.sha256)
    return _Columns(shard.path, shard.size, shard.count)


class _Columns:
    """An open shard: where each column lies in the file."""

    def __init__(self, path: Path, size: int, count: int) -> None:
        self.path = path
        self.file = path.open("rb", buffering=0)
        with naming(path, "is damaged, or no shard of Denskit; copy or convert it again"):
            self.places = self._places(size)
            self._check(count)

    def _places(self, size: int) -> dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]:
        """Type, shape and offset in the file of each column, from the safetensors header."""
        length = int.from_bytes(os.pread(self.file.fileno(), 8, 0), "little")
        if os.fstat(self.file.fileno()).st_size != size or length > min(size - 8, LONGEST_HEADER):
            raise ValueError(f"{size} bytes and a short header are wanted")
        header = json.loads(os.pread(self.file.fileno(), length, 8))
        places = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            kind, shape = np.dtype(_TYPES[entry["dtype"]]), tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            bytes_wanted = math.prod(shape) * kind.itemsize
            if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
                raise ValueError(f"column {name} has a shape or a place that is no whole number")
            if not 0 <= begin <= end <= size - 8 - length or end - begin != bytes_wanted:
                raise ValueError(f"column {name} does not fit the file")
            places[name] = (kind, shape, 8 + length + begin)
        return places

    def _check(self, count: int) -> None:
        """Raise ValueError where a required column is absent or has other than one row a structure or an atom."""
        atoms = self.places["positions"][1][0]
        rows: dict[str, tuple[int, ...]] = {"starts": (count + 1,)}
        for name, shape in _SHAPES.items():
            if name in self.places or name not in LABELS:
                rows[name] = (atoms if name in _OF_ATOMS else count, *shape)
                rows |= {f"has_{name}": (count,)} if name in LABELS else {}
        rows |= {name: (count,) for name in (*ELECTRONS, *MARKS) if name in self.places}
        for name in _WORDS:
            if name in self.places or f"{name}_starts" in self.places:
                rows |= {f"{name}_starts": (count + 1,), name: (math.prod(self.places[name][1]),)}
        for name, wanted in rows.items():
            if self.places[name][1] != wanted:
                raise ValueError(f"column {name} has shape {self.places[name][1]}; wanted {wanted}")

    def rows(self, name: str, begin: int, end: int) -> np.ndarray:
        """Some rows of a column.  Raises ValueError for rows beyond its end."""
        kind, shape, offset = self.places[name]
        if not 0 <= begin <= end <= shape[0]:
            raise ValueError(f"rows {begin} to {end} of column {name}, which has {shape[0]}")
        width = math.prod(shape[1:]) * kind.itemsize
        wanted = (end - begin) * width
        buffer = bytearray(wanted)  # bytes would make the arrays read-only
        if os.preadv(self.file.fileno(), [buffer], offset + begin * width) != wanted:
            raise ValueError(f"column {name} ends early")
        values = np.frombuffer(buffer, dtype=np.uint8 if kind == np.bool_ else kind).reshape(-1, *shape[1:])
        return values != 0 if kind == np.bool_ else values

    def system(self, record: int) -> System:
        """One structure.  ``System.index`` is its place in the shard."""
        with naming(f"{self.path}, record {record}", "is damaged; copy or convert the file again"):
            begin, end = self.rows("starts", record, record + 2).tolist()
            fields: dict[str, Any] = {
                name: self.rows(name, begin, end) if name in _OF_ATOMS else self.rows(name, record, record + 1)[0]
                for name in _SHAPES
                if name not in LABELS or (name in self.places and self.rows(f"has_{name}", record, record + 1)[0])
            }
            fields |= {name: self._word(name, record) for name in _WORDS if f"{name}_starts" in self.places}
            fields |= {mark: bool(self._number(mark, record)) for mark in MARKS if mark in self.places}
            said = {name: self._number(name, record) for name in ELECTRONS if name in self.places}
            fields["electrons"] = electrons_in(said)
        for name in ("positions", "forces", "relaxed_positions"):
            if name in fields:
                fields[name] = fields[name].astype(np.float64, copy=False)
        for name in ("atomic_numbers", "tags"):
            fields[name] = fields[name].astype(np.int64)
        for name, kind in (("denoise", bool), ("energy", float), ("relaxed_energy", float), ("fid", int)):
            if name in fields:
                fields[name] = kind(fields[name])
        return System(**fields, index=record)

    def elements(self) -> list[frozenset[int]]:
        """The atomic numbers that occur in each structure [n]; equal sets are one object."""
        with naming(self.path, "is damaged; copy or convert the file again"):
            starts = self.rows("starts", 0, self.places["starts"][1][0])
            numbers = self.rows("atomic_numbers", 0, self.places["atomic_numbers"][1][0]).astype(np.int64)
            occurs = np.unique(np.repeat(np.arange(len(starts) - 1), np.diff(starts)) * _NUMBERS + numbers)
            ends = np.searchsorted(occurs, _NUMBERS * np.arange(1, len(starts)))
        sets: dict[tuple[int, ...], frozenset[int]] = {}
        found = (tuple(own.tolist()) for own in np.split(occurs % _NUMBERS, ends[:-1]))
        return [sets.setdefault(own, frozenset(own)) for own in found]

    def _number(self, name: str, record: int) -> float:
        return float(self.rows(name, record, record + 1)[0])

    def _word(self, name: str, record: int) -> str:
        begin, end = self.rows(f"{name}_starts", record, record + 2).tolist()
        return self.rows(name, begin, end).tobytes().decode()
