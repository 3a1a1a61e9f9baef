"""JSON of structures as pymatgen writes them: MPtrj and MatPES as published, perhaps packed, read as a stream.

MPtrj: {material: {frame: {structure, corrected_total_energy, force, stress, ...}}}; B. Deng et al., CHGNet, Nat. Mach.
Intell. 5, 1031 (2023); figshare 23713842.  Energies are VASP's totals with the corrections of MP2020.

MatPES: JSON, or JSON lines: [{structure, energy, forces, stress, matpes_id, ...}, ...]; A. D. Kaplan et al., arXiv
2503.04070; matpes.ai.  Energies are VASP's totals without corrections.

Energies are in eV; stress is VASP's: in kbar, positive under compression, 3 x 3 or xx, yy, zz, yz, xz, xy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ase.data import atomic_numbers

from denskit.batch import System
from denskit.data.base import full_stress
from denskit.data.config import STRESS_UNITS, DataConfig
from denskit.data.readers.extxyz import unpacked
from denskit.data.structure_arrays import StructureArrays
from denskit.reading.budget import PACKED, Lines, Text, naming
from denskit.runtime.progress import counted

_PIECE = 2**20  # characters read at once
_BETWEEN = " \t\r\n,:"
_OF_MPTRJ = re.compile(r'\s*\{\s*"(mp|mvc)-[^"]+"\s*:\s*\{')  # the first key is a material of the Materials Project
_LOOKED_AT = 2**18  # bytes of a file of MatPES in which the first entry shows its name


class Published(NamedTuple):
    """A published dataset."""

    name: str
    energy: str  # field of the energy, unless the settings name another
    systems: Callable[[Path, str], Iterator[System]]  # of a file, with the energy in a field


def published_as(path: Path) -> Published | None:
    """The dataset that a file is of, by its name and beginning; None for other files.

    Raises ValueError, naming it, for a packed file that is damaged.
    """
    kind = unpacked(path).suffix
    if kind not in (".json", ".jsonl"):
        return None
    with naming(path, "cannot be unpacked"), PACKED.get(path.suffix, open)(path, "rb") as file:
        beginning = file.read(200)
        if kind == ".json" and _OF_MPTRJ.match(beginning.decode("utf-8", "replace")):
            return MPTRJ
        beginning += file.read(_LOOKED_AT)
    return MATPES if b'"matpes_id"' in beginning and b'"structure"' in beginning else None


def read_published(path: Path, dataset: Published, config: DataConfig) -> tuple[StructureArrays, list[str]]:
    """All structures of a file, and a message.  Groups are materials: in MatPES those that the dynamics began with.

    Raises ValueError, naming file and entry, for a truncated file and entries without a structure, and for settings of
    other units or labels than the published ones.
    """
    if (
        config.stress_settings
        or config.forces_key
        or config.units not in ("auto", "eV")
        or config.forces_unit != "auto"
    ):
        raise ValueError(
            f"{path}: {dataset.name} has its own names and units; leave out data.units, data.forces_unit and the "
            "keys of its labels"
        )
    energy = config.energy_key or dataset.energy
    structures = StructureArrays.from_systems(dataset.systems(path, energy), name=str(path))
    said = (
        f"{path}: {dataset.name}, {counted(len(structures), 'structure')} of "
        f"{counted(len(set(structures.groups)), 'material')}; energy from "
        f"{energy}, stress from VASP's in kbar"
    )
    return replace(structures, denoise=config.origin != "md"), [said]


def _mptrj(path: Path, energy: str) -> Iterator[System]:
    index = 0
    with naming(path, "is truncated, or no file of MPtrj"), Text(path) as file:
        members = values(file)
        for material, frames in zip(members, members, strict=True):
            for name, frame in frames.items():
                with naming(f"{path}, frame {name}", "cannot be read"):
                    yield system_of(frame, energy, "force", index=index, group=material, sid=name)
                index += 1


def _matpes(path: Path, energy: str) -> Iterator[System]:
    with naming(path, "is truncated, or no file of MatPES"), Text(path) as file, Lines(path) as lines:
        entries = values(file) if lines.stream.peek(1)[:1] == b"[" else map(json.loads, lines)
        for index, entry in enumerate(entries):
            name = str(entry.get("matpes_id", index))
            with naming(f"{path}, entry {name}", "cannot be read"):
                group = str((entry.get("provenance") or {}).get("original_mp_id") or name)
                yield system_of(entry, energy, "forces", index=index, group=group, sid=name)


MPTRJ = Published("MPtrj", "corrected_total_energy", _mptrj)
MATPES = Published("MatPES", "energy", _matpes)


def values(file: Text) -> Iterator[Any]:
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


def system_of(
    entry: Mapping[str, Any], energy_field: str, forces_field: str, *, index: int, group: str, sid: str
) -> System:
    """A periodic structure with its labels.  Raises ValueError for sites of several elements."""
    energy, forces, stress = entry.get(energy_field), entry.get(forces_field), entry.get("stress")
    structure = entry["structure"]
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
