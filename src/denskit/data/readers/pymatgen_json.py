"""JSON of structures as pymatgen writes them, read as a stream: files of MPtrj and MatPES are larger than memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from ase.data import atomic_numbers

from denskit.batch import System
from denskit.data.base import full_stress
from denskit.data.config import STRESS_UNITS, DataConfig
from denskit.data.structure_arrays import StructureArrays
from denskit.reading.budget import Text
from denskit.runtime.progress import counted

_PIECE = 2**20  # characters read at once
_BETWEEN = " \t\r\n,:"


def values(file: Text | TextIO) -> Iterator[Any]:
    """The values of the one list or object (keys and values in turn) of a file.

    A value is held in memory, not the file.  Raises json.JSONDecodeError where the file is cut off.
    """
    decoder, text, place = json.JSONDecoder(), file.read(_PIECE).lstrip()[1:], 0
    while True:
        while place < len(text) and text[place] in _BETWEEN:
            place += 1
        if text[place : place + 1] in ("}", "]"):
            return
        try:
            value, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError:  # cut off within the value: read as much again
            more = file.read(max(_PIECE, len(text) - place))
            if not more:
                raise
            text, place = text[place:] + more, 0
            continue
        yield value


def read_as_published(
    path: Path, config: DataConfig, systems: Callable[[Path, str], Iterator[System]], *, dataset: str, energy: str
) -> tuple[StructureArrays, list[str]]:
    """All structures of a file, and a message.

    ``systems(path, key)`` reads them with the energy ``key``: that of the settings, else ``energy``.  Raises ValueError
    for settings of other units or labels than the published ones.
    """
    if config.stress_settings or config.forces_key or config.units not in ("auto", "eV"):
        raise ValueError(
            f"{path}: {dataset} has its own names and units; leave out data.units and the keys of its labels"
        )
    energy = config.energy_key or energy
    structures = StructureArrays.from_systems(systems(path, energy), name=str(path))
    said = (
        f"{path}: {dataset}, {counted(len(structures), 'structure')} of "
        f"{counted(len(set(structures.groups)), 'material')}; energy from "
        f"{energy}, stress from VASP's in kbar"
    )
    return replace(structures, denoise=config.origin != "md"), [said]


def system_of(
    structure: Mapping[str, Any], *, energy: float | None, forces: Any, stress: Any, index: int, group: str, sid: str
) -> System:
    """A periodic structure, and labels in eV, eV/Å and, as VASP writes stress, kbar positive under compression.

    stress: 3 x 3, or xx, yy, zz, yz, xz, xy.  Raises ValueError for sites of several elements.
    """
    sites = structure["sites"]
    species = [site["species"] for site in sites]
    if any(len(kinds) != 1 or kinds[0]["occu"] != 1 for kinds in species):
        raise ValueError("a site is shared by several elements, or partly empty")
    cell = np.array(structure["lattice"]["matrix"], dtype=np.float64)
    n = len(sites)
    return System(
        positions=np.array([site["abc"] for site in sites], dtype=np.float64).reshape(n, 3) @ cell,
        atomic_numbers=np.array([atomic_numbers[kinds[0]["element"]] for kinds in species], dtype=np.int64),
        cell=cell,
        pbc=np.ones(3, dtype=bool),
        fixed=np.zeros(n, dtype=bool),
        tags=np.zeros(n, dtype=np.int64),
        energy=None if energy is None else float(energy),
        forces=None if forces is None else np.array(forces, dtype=np.float64).reshape(n, 3),
        stress=None if stress is None else -STRESS_UNITS["kbar"] * full_stress(stress),
        index=index,
        group=group,
        sid=sid,
    )
