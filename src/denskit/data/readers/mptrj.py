"""MPtrj as published: one JSON file {material: {frame: {structure, energies, force, stress, ...}}}, perhaps packed.

It is read as a stream.

B. Deng et al., CHGNet, Nat. Mach. Intell. 5, 1031 (2023); figshare 23713842.  Energies are VASP's total energies with
the corrections of MP2020, in eV; stress is VASP's: in kbar, positive under compression.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from denskit.batch import System
from denskit.data.config import DataConfig
from denskit.data.readers.extxyz import unpacked
from denskit.data.readers.pymatgen_json import read_as_published, system_of, values
from denskit.data.structure_arrays import StructureArrays
from denskit.reading.budget import PACKED, Text, naming

ENERGY = "corrected_total_energy"
_BEGINNING = re.compile(r'\s*\{\s*"(mp|mvc)-[^"]+"\s*:\s*\{')


def is_mptrj(path: Path) -> bool:
    """Whether a file is JSON whose first key is a material of the Materials Project."""
    if unpacked(path).suffix != ".json":
        return False
    with naming(path, "cannot be unpacked"), PACKED.get(path.suffix, open)(path, "rb") as file:
        return _BEGINNING.match(file.read(200).decode("utf-8", "replace")) is not None


def read_mptrj(path: Path, config: DataConfig) -> tuple[StructureArrays, list[str]]:
    """All frames of the file, and a message.  A frame's group is its material.

    Raises ValueError, naming file and frame, for a truncated file and for frames without a structure.
    """
    return read_as_published(path, config, _systems, dataset="MPtrj", energy=ENERGY)


def _systems(path: Path, energy: str) -> Iterator[System]:
    index = 0
    with naming(path, "is truncated, or no file of MPtrj"), Text(path) as file:
        members = values(file)
        for material, frames in zip(members, members, strict=True):
            for name, frame in frames.items():
                with naming(f"{path}, frame {name}", "cannot be read"):
                    labels = {"energy": frame.get(energy), "forces": frame.get("force"), "stress": frame.get("stress")}
                    yield system_of(frame["structure"], **labels, index=index, group=material, sid=name)
                index += 1
