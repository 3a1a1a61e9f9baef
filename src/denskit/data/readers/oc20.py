"""OC20 and OC22 structures as published: pickled torch_geometric objects in LMDB shards or in lists.

Chanussot et al., ACS Catal. 11, 6059 (2021); Tran et al., ACS Catal. 13, 3066 (2023).  Both spellings of the labels
(``y``, ``force`` until March 2024, ``energy``, ``forces`` after) and all of their dtypes are read.  Structures are
periodic in three directions, whether they say so or not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from denskit.batch import System
from denskit.data.base import Shard
from denskit.data.config import FixedFrom
from denskit.data.readers.lmdb import LmdbFile
from denskit.data.readers.named_arrays import NamedArrays
from denskit.data.readers.unpickle import load_attributes, load_list, load_value
from denskit.runtime.progress import counted
from denskit.runtime.warning import warn

SUBSURFACE = 0  # the tag of atoms that OC20's relaxations hold


class LmdbShard(Shard):
    """One ``*.lmdb`` file in the published layout: keys "0", "1", ... and perhaps ``length``.

    Raises ValueError where the file has fewer records than it says.
    """

    def __init__(self, path: Path, fixed: FixedFrom) -> None:
        self.path = path
        self.file = LmdbFile(path)
        self.fixed = fixed
        stored = self.file.get("length")
        self._length = self.file.entries if stored is None else _length(stored, path)
        held = self.file.entries - (stored is not None)
        if self._length > held:
            said = f"{path} says that it has {self._length} records, but holds {held}"
            raise ValueError(f"{said}: it was not written to its end. Copy or download it again")
        if self._length == 0:
            raise ValueError(f"{path} has no records")
        if self.file.get(str(self._length)) is not None:
            warn(
                f"{path} says that it has {counted(self._length, 'record')}, but holds more: record {self._length} and "
                "those after it are not read. Write the number of records under the key 'length'"
            )

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, record: int) -> System:
        where = f"{self.path}, record {record}"
        raw = self.file.get(str(record))
        if raw is None:
            raise ValueError(f"{where} is missing, though the file has {len(self)} records")
        return system_of(load_attributes(raw, where), where, self.fixed)


class PickledList(Shard):
    """A ``.pkl`` file with a list of the same objects, decoded at once and kept.  Raises ValueError."""

    def __init__(self, path: Path, fixed: FixedFrom) -> None:
        self.path = path
        objects = load_list(path.read_bytes(), str(path))
        if not objects:
            raise ValueError(f"{path} holds an empty list")
        self._systems = [system_of(item, f"{path}, record {record}", fixed) for record, item in enumerate(objects)]

    def __len__(self) -> int:
        return len(self._systems)

    def __getitem__(self, record: int) -> System:
        return self._systems[record]


def system_of(attributes: dict[str, Any], where: str, fixed: FixedFrom) -> System:
    """The structure of a ``Data`` object's attributes (tensors as numpy arrays).

    ``energy``: ``y`` or ``energy``; of IS2RE objects ``y_init``.  Raises ValueError, saying ``where``, for attributes
    that are absent or do not fit.
    """
    named = NamedArrays(attributes, where)
    positions = named.numbers("pos", shape=(None, 3))
    n = len(positions)
    tags, fid = named.optional("tags", shape=(n,)), _number(named, "fid")
    return System(
        positions=positions,
        atomic_numbers=named.numbers("atomic_numbers", shape=(n,)).astype(np.int64),
        cell=named.numbers("cell", shape=(3, 3)),
        pbc=np.ones(3, dtype=bool),
        fixed=_fixed(named, n, fixed),
        tags=np.zeros(n, dtype=np.int64) if tags is None else tags.astype(np.int64),
        energy=_number(named, "energy", "y", "y_init"),
        forces=named.optional("forces", "force", shape=(n, 3)),
        group=_text(attributes.get("sid", "")),
        sid=_text(attributes.get("sid", "")),
        fid=None if fid is None else int(fid),
        relaxed_energy=_number(named, "y_relaxed"),
        relaxed_positions=named.optional("pos_relaxed", shape=(n, 3)),
    )


def _fixed(named: NamedArrays, n: int, source: FixedFrom) -> np.ndarray:
    if source == "none":
        return np.zeros(n, dtype=bool)
    name = "fixed" if source == "file" else "tags"
    if name not in named.arrays:
        raise ValueError(
            f"{named.where} does not say which atoms are fixed: no {name} among {named.names}. Only free atoms are "
            "corrupted and judged, so this must be known: data.fixed=tags holds the atoms with tag "
            "0, as OC20 does; data.fixed=none holds no atom, as in OC22"
        )
    values = named.numbers(name, shape=(n,))
    return values == SUBSURFACE if source == "tags" else values != 0


def _number(named: NamedArrays, *names: str) -> float | None:
    """A number, or a tensor of one; None where absent."""
    value = named.optional(*names, shape=())
    return None if value is None else float(value)


def _text(value: Any) -> str:
    """An integer, a tensor of one, or a text; empty for anything else."""
    if isinstance(value, np.ndarray):
        value = value.item() if value.size == 1 else ""
    return str(value)


def _length(raw: bytes, path: Path) -> int:
    value = load_value(raw, f"{path}, key 'length'")
    if not isinstance(value, int) or value < 0:
        found = value if isinstance(value, int) else f"a {type(value).__name__}"
        raise ValueError(f"{path}, key 'length' holds {found}; wanted the number of records")
    return value
