"""MatPES as published: JSON, or JSON lines, perhaps packed: [{structure, energy, forces, stress, matpes_id, ...}, ...].

A. D. Kaplan et al., arXiv 2503.04070; matpes.ai.  Energies are VASP's total energies in eV, without corrections; stress
is VASP's: in kbar, positive under compression, as xx, yy, zz, yz, xz, xy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from denskit.batch import System
from denskit.data.config import DataConfig
from denskit.data.readers.pymatgen_json import read_as_published, system_of, values
from denskit.data.structure_arrays import StructureArrays
from denskit.reading.budget import PACKED, Lines, Text, naming

ENERGY = "energy"
_LOOKED_AT = 2**18  # bytes of a file in which the first entry shows its name
_ENDINGS = (".json", ".jsonl")


def is_matpes(path: Path) -> bool:
    """Whether a file is a list of entries with a ``matpes_id``."""
    packed = path.suffix in PACKED
    if (path.with_suffix("") if packed else path).suffix not in _ENDINGS:
        return False
    with naming(path, "cannot be unpacked"), PACKED.get(path.suffix, open)(path, "rb") as file:
        beginning = file.read(_LOOKED_AT)
    return b'"matpes_id"' in beginning and b'"structure"' in beginning


def read_matpes(path: Path, config: DataConfig) -> tuple[StructureArrays, list[str]]:
    """All entries of the file, and a message.  The group is the material that the molecular dynamics began with.

    Raises ValueError, naming file and entry, for a truncated file and for entries without a structure.
    """
    return read_as_published(path, config, _systems, dataset="MatPES", energy=ENERGY)


def _systems(path: Path, energy: str) -> Iterator[System]:
    with naming(path, "is truncated, or no file of MatPES"):
        for index, entry in enumerate(_entries(path)):
            name = str(entry.get("matpes_id", index))
            with naming(f"{path}, entry {name}", "cannot be read"):
                labels = {"energy": entry.get(energy), "forces": entry.get("forces"), "stress": entry.get("stress")}
                group = str((entry.get("provenance") or {}).get("original_mp_id") or name)
                yield system_of(entry["structure"], **labels, index=index, group=group, sid=name)


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    with Text(path) as file, Lines(path) as lines:
        yield from values(file) if lines.stream.peek(1)[:1] == b"[" else map(json.loads, lines)
