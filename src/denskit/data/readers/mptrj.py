"""MPtrj as published: one JSON file {material: {frame: {structure, energies, force, stress, ...}}}, read as a stream.

B. Deng et al., CHGNet, Nat. Mach. Intell. 5, 1031 (2023); figshare 23713842.  Energies are VASP's total energies with
the corrections of MP2020, in eV; stress is VASP's: in kbar, positive under compression.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from ase.data import atomic_numbers

from denskit.batch import System
from denskit.data.config import STRESS_UNITS, DataConfig
from denskit.data.structure_arrays import StructureArrays
from denskit.reading.budget import naming

ENERGY = "corrected_total_energy"
_BEGINNING = re.compile(r'\s*\{\s*"(mp|mvc)-[^"]+"\s*:\s*\{')
_PIECE = 2**20  # characters read at once
_SPACE = " \t\r\n,:"


def is_mptrj(path: Path) -> bool:
    """Whether a file is JSON whose first key is a material of the Materials Project."""
    if path.suffix != ".json":
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return _BEGINNING.match(file.read(200)) is not None


def read_mptrj(path: Path, config: DataConfig) -> tuple[StructureArrays, list[str]]:
    """All frames of the file, and a message.  A frame's group is its material.

    Raises ValueError, naming file and frame, for a truncated file and for frames without a structure.
    """
    if config.stress_settings or config.forces_key or config.units not in ("auto", "eV"):
        raise ValueError(f"{path}: MPtrj has its own names and units; leave out data.units and the keys of its labels")
    energy = config.energy_key or ENERGY
    structures = StructureArrays.from_systems(_systems(path, energy), name=str(path))
    said = f"{path}: MPtrj, {len(set(structures.groups))} materials; energy from {energy}, stress from VASP's in kbar"
    return replace(structures, denoise=config.origin != "md"), [said]


def _systems(path: Path, energy: str) -> Iterator[System]:
    index = 0
    with naming(path, "is truncated, or no file of MPtrj"), path.open(encoding="utf-8") as file:
        for material, frames in _members(file):
            for name, frame in frames.items():
                with naming(f"{path}, frame {name}", "cannot be read"):
                    system = _system(frame, energy)
                yield replace(system, index=index, group=material, sid=name)
                index += 1


def _members(file: TextIO) -> Iterator[tuple[str, dict[str, Any]]]:
    """Keys and values of the one object of a file; a value is held in memory, not the object."""
    decoder, text, place = json.JSONDecoder(), file.read(_PIECE).lstrip()[1:], 0
    pending: str | None = None
    while True:
        while place < len(text) and text[place] in _SPACE:
            place += 1
        if text[place : place + 1] == "}":
            return
        try:
            value, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError:  # cut off within the value: read as much again
            more = file.read(max(_PIECE, len(text) - place))
            if not more:
                raise
            text, place = text[place:] + more, 0
            continue
        if pending is None:
            pending = str(value)
        else:
            yield pending, value
            pending = None


def _system(frame: Mapping[str, Any], energy: str) -> System:
    structure = frame["structure"]
    sites = structure["sites"]
    species = [site["species"] for site in sites]
    if any(len(kinds) != 1 or kinds[0]["occu"] != 1 for kinds in species):
        raise ValueError("a site is shared by several elements, or partly empty")
    cell = np.array(structure["lattice"]["matrix"], dtype=np.float64)
    forces, stress, value = (frame.get(name) for name in ("force", "stress", energy))
    n = len(sites)
    return System(
        positions=np.array([site["abc"] for site in sites], dtype=np.float64).reshape(n, 3) @ cell,
        atomic_numbers=np.array([atomic_numbers[kinds[0]["element"]] for kinds in species], dtype=np.int64),
        cell=cell,
        pbc=np.ones(3, dtype=bool),
        fixed=np.zeros(n, dtype=bool),
        tags=np.zeros(n, dtype=np.int64),
        energy=None if value is None else float(value),
        forces=None if forces is None else np.array(forces, dtype=np.float64).reshape(n, 3),
        stress=None if stress is None else -STRESS_UNITS["kbar"] * np.array(stress, dtype=np.float64).reshape(3, 3),
    )
