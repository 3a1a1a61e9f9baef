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
from denskit.data.readers.unpickle import load_attributes, load_list, load_value

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
        if stored is not None and self._length > self.file.entries - 1:
            raise ValueError(
                f"{path} says that it has {self._length} records, but holds {self.file.entries - 1}: it was not "
                "written to its end. Copy or download it again"
            )
        if self._length == 0:
            raise ValueError(f"{path} has no records")

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
    fields = _Fields(attributes, where)
    positions = fields.array("pos", (None, 3))
    n = len(positions)
    energy = fields.number("energy", "y", "y_init")
    fid = fields.number("fid")
    return System(
        positions=positions,
        atomic_numbers=fields.array("atomic_numbers", (n,)).astype(np.int64),
        cell=fields.array("cell", (1, 3, 3)).reshape(3, 3),
        pbc=np.ones(3, dtype=bool),
        fixed=_fixed(fields, n, fixed),
        tags=fields.optional("tags", (n,), np.zeros(n)).astype(np.int64),
        energy=energy,
        forces=fields.optional("forces" if "forces" in attributes else "force", (n, 3), None),
        group=fields.text("sid"),
        sid=fields.text("sid"),
        fid=None if fid is None else int(fid),
        relaxed_energy=fields.number("y_relaxed"),
        relaxed_positions=fields.optional("pos_relaxed", (n, 3), None),
    )


def _fixed(fields: _Fields, n: int, source: FixedFrom) -> np.ndarray:
    if source == "none":
        return np.zeros(n, dtype=bool)
    name = "fixed" if source == "file" else "tags"
    if name not in fields.attributes:
        raise ValueError(
            f"{fields.where} does not say which atoms are fixed: no {name} among {fields.names}. Only free atoms are "
            "corrupted and judged, so this must be known: data.fixed=tags (or --fixed tags) holds the atoms with tag "
            "0, as OC20 does; data.fixed=none holds no atom, as in OC22"
        )
    values = fields.array(name, (n,))
    return values == SUBSURFACE if source == "tags" else values != 0


class _Fields:
    """Attributes by name, held to their shapes."""

    def __init__(self, attributes: dict[str, Any], where: str) -> None:
        self.attributes = attributes
        self.where = where

    @property
    def names(self) -> str:
        return ", ".join(sorted(self.attributes)) or "no attributes"

    def array(self, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
        """In float64."""
        if name not in self.attributes:
            raise ValueError(f"{self.where} has no {name}; it has {self.names}")
        value = np.asarray(self.attributes[name])
        fits = value.ndim == len(shape) and all(w in (None, n) for w, n in zip(shape, value.shape, strict=True))
        if not fits and value.shape == (3, 3) and shape == (1, 3, 3):
            fits, value = True, value[None]
        if not fits or value.dtype.kind not in "fiub":
            raise ValueError(f"{self.where}: {name} is {value.dtype} of shape {value.shape}; wanted numbers {shape}")
        return value.astype(np.float64)

    def optional(self, name: str, shape: tuple[int, ...], default: np.ndarray | None) -> Any:
        return self.array(name, shape) if name in self.attributes else default

    def number(self, *names: str) -> float | None:
        """The first of ``names`` that is there: a number, or a tensor of one."""
        found = next((name for name in names if name in self.attributes), None)
        if found is None:
            return None
        value = np.asarray(self.attributes[found])
        if value.size != 1 or value.dtype.kind not in "fiub":
            raise ValueError(f"{self.where}: {found} is {value.dtype} of shape {value.shape}; wanted one number")
        return float(value.reshape(()))

    def text(self, name: str) -> str:
        """An integer, a tensor of one, or a text; empty where absent."""
        value = self.attributes.get(name, "")
        if isinstance(value, np.ndarray):
            value = value.item() if value.size == 1 else ""
        return str(value)


def _length(raw: bytes, path: Path) -> int:
    value = load_value(raw, f"{path}, key 'length'")
    if not isinstance(value, int) or value < 0:
        found = value if isinstance(value, int) else f"a {type(value).__name__}"
        raise ValueError(f"{path}, key 'length' holds {found}; wanted the number of records")
    return value
