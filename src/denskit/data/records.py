"""Structures that stay in their files: shards in a row, decoded one record at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from ase.data import chemical_symbols

from denskit.batch import MAX_ATOMIC_NUMBER, System
from denskit.data.base import Mark, Source, Subset
from denskit.data.references import system_references
from denskit.data.structure_arrays import (
    LABELS,
    MASK_STRESS,
    NO_LATTICE,
    NO_POSITIONS,
    NO_STRESS,
    NOT_FINITE,
    SHOWN,
    UNKNOWN_ELEMENTS,
    Missing,
    lacks_lattice,
    numbered,
)
from denskit.reading.arrays import read_npz
from denskit.runtime.progress import counted

LISTED = 5_000_000  # structures whose elements are listed: some ten seconds


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Checks and changes of every record."""

    required: tuple[str, ...] = ()  # labels that every record must have
    missing: Missing = "error"  # mask: labels that are absent or not finite count in no loss
    denoise: bool = True
    offsets: Path | None = None  # a file of eV by sid, added to energies; read when the first is needed

    def apply(self, system: System, where: str, index: int) -> System:
        """The checked record.  Raises ValueError saying ``where``."""
        _check_geometry(system, where)
        labels: dict[str, Any] = {label: self._label(system, label, where) for label in LABELS}
        relaxed = system.relaxed_energy
        if relaxed is not None and not np.isfinite(relaxed):
            raise ValueError(f"{where}: the relaxed energy is NaN or infinite")
        if system.relaxed_positions is not None and not np.isfinite(system.relaxed_positions).all():
            raise ValueError(f"{where}: a relaxed position is NaN or infinite")
        if self.offsets is not None and (relaxed is not None or labels["energy"] is not None):
            offsets = system_references(self.offsets)
            if system.sid not in offsets:
                raise ValueError(
                    f"{where}: data.oc20_ref has no reference for system {system.sid or '(without a sid)'}"
                )
            offset = offsets[system.sid]
            labels["energy"] = None if labels["energy"] is None else labels["energy"] + offset
            relaxed = None if relaxed is None else relaxed + offset
        return replace(system, index=index, denoise=self.denoise and system.denoise, relaxed_energy=relaxed, **labels)

    def _label(self, system: System, label: str, where: str) -> np.ndarray | float | None:
        value: np.ndarray | float | None = getattr(system, label)
        no_volume = label == "stress" and not system.pbc.all()
        if value is None or no_volume:
            can_have = label == "energy" or not system.is_isolated  # an isolated atom has no force or stress to learn
            if label in self.required and self.missing == "error" and can_have:
                if no_volume:
                    raise ValueError(f"{where} {NO_STRESS}. {MASK_STRESS}")
                raise ValueError(f"{where} has no {label}. Leave it out, or let it count in no loss: data.missing=mask")
            return None
        if np.isfinite(value).all():
            return value
        if self.missing == "error":
            raise ValueError(f"{where}: {label} is NaN or infinite. Leave it out, or say data.missing=mask")
        return None


def _check_geometry(system: System, where: str) -> None:
    """The rules of :func:`denskit.data.structure_arrays.geometry_defects`, for one structure."""
    numbers = system.atomic_numbers
    if len(system) == 0:
        raise ValueError(f"{where} has no atoms")
    if not (np.isfinite(system.positions).all() and np.isfinite(system.cell).all()):
        raise ValueError(f"{where}: {NOT_FINITE}")
    if numbers.min() < 1 or numbers.max() > MAX_ATOMIC_NUMBER:
        raise ValueError(f"{where}: {UNKNOWN_ELEMENTS}, from {numbers.min()} to {numbers.max()}")
    if lacks_lattice(system.cell, system.pbc):
        raise ValueError(f"{where}: {NO_LATTICE}: {system.cell.tolist()} Å")
    if len(system) > 1 and (system.positions == system.positions[0]).all():
        raise ValueError(f"{where}: {NO_POSITIONS}")


@dataclass(frozen=True)
class Joined(Source):
    """Several sources in a row.  ``System.index`` counts through all of them."""

    name: str
    sources: tuple[Source, ...]
    sizes: np.ndarray | None = None  # [B] atoms of each structure, where they are known

    @property
    def unit(self) -> str:
        """Of all sources; empty where they differ."""
        units = {source.unit for source in self.sources}
        return units.pop() if len(units) == 1 else ""

    @property
    def label_fields(self) -> tuple[tuple[str, str, int], ...]:
        """As of each source."""
        return tuple(field for source in self.sources for field in source.label_fields)

    @property
    def in_memory(self) -> bool:  # type: ignore[override]
        """Whether all sources are."""
        return all(source.in_memory for source in self.sources)

    @property
    def lists_elements(self) -> bool:
        """Whether all sources do, and are not too large together."""
        return len(self) <= LISTED and all(source.lists_elements for source in self.sources)

    def elements_of_structures(self) -> list[frozenset[int]]:
        """The atomic numbers that occur in each structure [B]."""
        if not self.lists_elements:
            return super().elements_of_structures()
        return [elements for source in self.sources for elements in source.elements_of_structures()]

    def places_of(self, mark: Mark) -> np.ndarray:
        """As of each source."""
        begins = [0, *self._ends[:-1]]
        return np.concatenate([at + part.places_of(mark) for at, part in zip(begins, self.sources, strict=True)])

    @cached_property
    def _ends(self) -> list[int]:
        return np.cumsum([len(source) for source in self.sources]).tolist()

    def __len__(self) -> int:
        return self._ends[-1]

    def locate(self, index: int) -> tuple[Source, int]:
        """The source that holds a structure, and its position there.  Raises IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(f"structure {index} of {self.name}, which has {len(self)}")
        number = bisect_right(self._ends, index)
        source = self.sources[number]
        return source, index - (self._ends[number] - len(source))

    def __getitem__(self, index: int) -> System:
        source, place = self.locate(index)
        return self._finished(source[place], source, place, index)

    def iterate(self, begin: int = 0, end: int | None = None) -> Iterator[System]:
        """The structures ``begin`` to ``end - 1`` in order, read as each source iterates."""
        end = len(self) if end is None else end
        for source, last in zip(self.sources, self._ends, strict=True):
            first = last - len(source)
            places = range(max(begin - first, 0), min(end - first, len(source)))
            if places:
                for place, system in zip(places, source.iterate(places.start, places.stop), strict=True):
                    yield self._finished(system, source, place, first + place)

    def _finished(self, system: System, source: Source, place: int, index: int) -> System:
        return replace(system, index=index)

    def fields(self, index: int) -> dict[str, Any]:
        """Fields of the file beside the structure and its labels."""
        source, place = self.locate(index)
        return source.fields(place)


def joined(sources: Sequence[Source]) -> Source:
    """One source of several in a row."""
    if len(sources) == 1:
        return sources[0]
    sizes = [source.sizes for source in sources if source.sizes is not None]
    whole = np.concatenate(sizes) if len(sizes) == len(sources) else None
    return Joined(", ".join(dict.fromkeys(source.name for source in sources)), tuple(sources), whole)


def once(source: Source) -> Source:
    """The structures of parts that count several times (:func:`joined`), each once."""
    if not isinstance(source, Joined) or isinstance(source, Records):
        return source
    return joined(list({id(part): part for part in source.sources}.values()))


def numbered_in(source: object, places: Sequence[int], *, counted: bool = True) -> str:
    """As :func:`numbered`; of several files in a row each frame by its file and its number there."""
    while isinstance(source, Subset):
        source = source.source
    if not isinstance(source, Joined) or isinstance(source, Records):
        return numbered(np.array(places), counted=counted)
    by_file: dict[str, list[int]] = {}
    for index in places:
        part, place = source.locate(index)
        by_file.setdefault(part.name, []).append(place)
    shown = [f"{numbered(np.array(own), counted=False)} of {name}" for name, own in by_file.items()]
    more = f", ..., in {len(shown):,} files in all" if len(shown) > SHOWN else ""
    return f"{', '.join(shown[:SHOWN])}{more}{' (counted from 0)' * counted}"


def unknown_elements(source: Source, elements: Sequence[frozenset[int]], known: Collection[int]) -> str:
    """``mine.xyz: Xe in 2 of 4 structures, frames 3, 4 (counted from 0)``; empty where all elements are ``known``.

    elements: atomic numbers that occur in each structure of the source; none: no structure is looked at.
    """
    lacking = [own.difference(known) for own in elements]
    places = [place for place, unknown in enumerate(lacking) if unknown]
    if not places:
        return ""
    symbols = " ".join(chemical_symbols[number] for number in sorted(frozenset[int]().union(*lacking)))
    frames = numbered_in(source, [source[place].index for place in places])
    return f"{source.name}: {symbols} in {len(places):,} of {counted(len(source), 'structure')}, {frames}"


@dataclass(frozen=True)
class Records(Joined):
    """The shards of a file or folder as one source, every record checked when it is read.

    Reading is lazy: only counts are held.  May be pickled, and used after a fork and by several threads.
    """

    rules: Rules = Rules()

    def _finished(self, system: System, source: Source, place: int, index: int) -> System:
        return self.rules.apply(system, f"{source.name}, record {place}", index)

    def checked(
        self, *, required: Sequence[str] = (), missing: Missing = "error", alone: bool = True
    ) -> tuple[Self, list[str]]:
        """The records, with these rules for labels when they are read, and no messages."""
        return replace(self, rules=replace(self.rules, required=tuple(required), missing=missing)), []


def sizes_beside(folder: Path, count: int, *, whole: bool) -> np.ndarray | None:
    """``natoms`` [count] of ``metadata.npz`` in a folder of shards, as OCP's ``make_lmdb_sizes.py`` writes it;
    None where it is absent.

    Raises ValueError where it does not fit the shards of a ``whole`` folder; one shard of several may differ.
    """
    path = folder / "metadata.npz"
    if not path.is_file():
        return None
    natoms = read_npz(path).get("natoms")
    if natoms is not None and natoms.shape == (count,) and natoms.dtype.kind in "iu":
        return natoms
    if not whole:
        return None
    found = "no natoms" if natoms is None else f"natoms of {natoms.dtype} {natoms.shape}"
    raise ValueError(f"{path} has {found}; wanted {count} integers, one a record. Remove it, or make it anew")
