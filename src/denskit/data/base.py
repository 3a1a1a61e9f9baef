"""Sources of structures, and how structures become a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from ase.stress import voigt_6_to_full_3x3_stress
from torch import Tensor

from denskit.batch import Batch, System, Targets
from denskit.geometry.lattice import nearest_image

Mark = Literal["of_model", "unconverged"]  # of System
MARKS: tuple[Mark, ...] = ("of_model", "unconverged")
ELECTRONS = ("charge", "total_charge", "spin", "total_spin", "multiplicity", "spin_multiplicity")


class Source(ABC):
    """Structures with their labels, in eV and Å, by position."""

    if TYPE_CHECKING:  # most sources are dataclasses, which have these as fields

        @property
        def name(self) -> str:
            """Names the source in errors: a file, a part of a file."""

        @property
        def sizes(self) -> np.ndarray | None:
            """Atoms of each structure [B], perhaps in a mapped file, by which batches are balanced; None: unknown."""

    in_memory: ClassVar[bool] = False  # False: each access reads a file

    @property
    def lists_elements(self) -> bool:
        """Whether :meth:`elements_of_structures` takes seconds."""
        return self.in_memory

    @property
    def unit(self) -> str:
        """Unit of the energies in the file, which are in eV here; empty for several."""
        return "eV"

    @property
    def label_keys(self) -> tuple[str, ...]:
        """Fields of the file that the user named as labels (``data.energy_key`` and the like)."""
        return ()

    @property
    def label_fields(self) -> tuple[tuple[str, str, int], ...]:
        """Labels, the fields that hold them and in how many structures; empty for formats with names of their own."""
        return ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> System: ...

    def __iter__(self) -> Iterator[System]:
        return self.iterate()

    def iterate(self, begin: int = 0, end: int | None = None) -> Iterator[System]:
        """The structures ``begin`` to ``end - 1`` (None: to the last) in order; may be faster than by index."""
        return (self[index] for index in range(begin, len(self) if end is None else end))

    def in_file_order(self) -> Self:
        """The same structures in the order of their file."""
        return self

    def group_names(self) -> tuple[str, ...]:
        """The group of each structure, for splits; empty where no structure has one.  Reads all structures."""
        groups = tuple(system.group for system in self)
        return groups if any(groups) else ()

    def elements_of_structures(self) -> list[frozenset[int]]:
        """The atomic numbers that occur in each structure [B], for splits.  Reads all structures, or their elements
        alone where the source :attr:`lists_elements`."""
        return [frozenset(system.atomic_numbers.tolist()) for system in self]

    def places_of(self, mark: Mark) -> np.ndarray:
        """Places of the structures with a mark, where they are in memory; others tell by :class:`System` alone."""
        return np.zeros(0, dtype=np.int64)

    def fields(self, index: int) -> dict[str, Any]:
        """Fields of the file beside the structure and its labels."""
        return {}


def elements_of(source: Source) -> set[int]:
    """Atomic numbers that occur in a source; reads all of it."""
    return {number for system in source for number in np.unique(system.atomic_numbers).tolist()}


def known_elements(source: Source, few: int = 0) -> list[frozenset[int]]:
    """The atomic numbers that occur in each structure [B], where they take seconds; empty where they take minutes.

    few: structures of which all are read, whatever the source.
    """
    quick = source.in_memory or source.lists_elements or len(source) <= few
    return source.elements_of_structures() if quick else []


class Shard(Source):
    """One file of structures.  Errors name the file and the record."""

    path: Path

    @property
    def name(self) -> str:
        """The file."""
        return str(self.path)

    @property
    def sizes(self) -> np.ndarray | None:
        """Atoms of each structure: most files do not say."""
        return None


@dataclass(frozen=True)
class Subset(Source):
    """The structures ``indices`` [M] of a source.  ``System.index`` stays the position in the whole source."""

    source: Source
    indices: np.ndarray
    name: str

    @property
    def unit(self) -> str:
        """As of the whole source."""
        return self.source.unit

    @property
    def in_memory(self) -> bool:  # type: ignore[override]
        """As the whole source."""
        return self.source.in_memory

    @property
    def lists_elements(self) -> bool:
        """As the whole source."""
        return self.source.lists_elements

    def elements_of_structures(self) -> list[frozenset[int]]:
        """The atomic numbers that occur in each structure [M]."""
        if not self.lists_elements:
            return super().elements_of_structures()
        elements = self.source.elements_of_structures()
        return [elements[index] for index in self.indices]

    def places_of(self, mark: Mark) -> np.ndarray:
        """As of the whole source."""
        return np.flatnonzero(np.isin(self.indices, self.source.places_of(mark)))

    @cached_property
    def sizes(self) -> np.ndarray | None:
        """Atoms of each structure [M], where the source knows them."""
        sizes = self.source.sizes
        return None if sizes is None else sizes[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> System:
        return self.source[int(self.indices[index])]

    def in_file_order(self) -> Self:
        """The subset with ascending indices."""
        return replace(self, indices=np.sort(self.indices))


def spaced(length: int, most: int) -> np.ndarray:
    """At most ``most`` positions among ``length``, evenly spaced from the first to the last."""
    return np.linspace(0, length - 1, min(length, most)).round().astype(np.int64)


def spaced_pairs(length: int, most: int) -> np.ndarray:
    """At most ``most`` positions among ``length``: evenly spaced pairs of neighbours."""
    if length <= most:
        return np.arange(length)
    begin = np.linspace(0, length - 2, max(most // 2, 1)).astype(np.int64)
    return np.unique(np.concatenate([begin, begin + 1]))


def evenly(source: Source, most: int | None) -> Source:
    """At most ``most`` structures of a source, evenly spaced; None: all."""
    if most is None or len(source) <= most:
        return source
    return Subset(source, spaced(len(source), most), source.name)


@dataclass(frozen=True)
class Lazy(Source):
    """A source that is opened when it is first used: training never reads a test file."""

    name: str
    open: Callable[[], Source]

    @cached_property
    def _source(self) -> Source:
        return self.open()

    @property
    def opened(self) -> Source:
        """The source itself."""
        return self._source

    @property
    def sizes(self) -> np.ndarray | None:
        """Atoms of each structure, where the source knows them."""
        return self._source.sizes

    def places_of(self, mark: Mark) -> np.ndarray:
        """As of the source."""
        return self._source.places_of(mark)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> System:
        return self._source[index]


def electrons_in(fields: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """Total charge and spin among the fields of a structure in a file, where they are finite numbers."""
    found = ((name, fields[name]) for name in ELECTRONS if isinstance(fields.get(name), int | float | np.number))
    return tuple((name, float(value)) for name, value in found if np.isfinite(value))


def total_charge(system: System) -> float | None:
    """Total charge of a structure by the fields of its file, e, to a hundredth; None where none says."""
    return next((round(value, 2) for name, value in system.electrons if name.endswith("charge")), None)


def full_stress(values: Any) -> np.ndarray:
    """A stress [3, 3] from nine numbers, or from the six xx, yy, zz, yz, xz, xy."""
    found = np.asarray(values, dtype=np.float64)
    return voigt_6_to_full_3x3_stress(found.reshape(6)) if found.size == 6 else found.reshape(3, 3)


def collate(systems: Sequence[System], dtype: torch.dtype = torch.float32) -> tuple[Batch, Targets]:
    """Concatenate B structures into one batch without edges, and their labels.

    Positions, cells, forces and stresses are in ``dtype``, energies always in float64.  In float32 positions are
    relative to the first atom of their structure: far from the origin rounding would move atoms against each other.
    A label that is absent is 0 with its mask False.  Raises ValueError for an empty sequence.
    """
    if not systems:
        raise ValueError("a batch needs at least one structure; the sequence of structures is empty")
    counts = torch.tensor([len(system) for system in systems])

    def atoms(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([getattr(system, name) for system in systems]))

    def rows(name: str) -> Tensor:
        return torch.from_numpy(np.stack([getattr(system, name) for system in systems]))

    exact = dtype == torch.float64
    positions = [system.positions if exact else system.positions - system.positions[:1] for system in systems]
    batch = Batch(
        positions=torch.from_numpy(np.concatenate(positions)).to(dtype),
        atomic_numbers=atoms("atomic_numbers"),
        cell=rows("cell").to(dtype),
        pbc=rows("pbc"),
        system_index=torch.arange(len(systems)).repeat_interleave(counts),
        n_atoms=counts,
        fixed=atoms("fixed"),
        tags=atoms("tags"),
        denoise=torch.tensor([system.denoise for system in systems]),
    )
    return batch, _targets(systems, counts, dtype)


def _targets(systems: Sequence[System], counts: Tensor, dtype: torch.dtype) -> Targets:
    def label(name: str, empty: Callable[[System], Any]) -> tuple[list[Any], Tensor]:
        values = [getattr(system, name) for system in systems]
        filled = [empty(system) if value is None else value for value, system in zip(values, systems, strict=True)]
        return filled, torch.tensor([value is not None for value in values])

    energy, energy_mask = label("energy", lambda system: 0.0)
    forces, has_forces = label("forces", lambda system: np.zeros_like(system.positions))
    stress, stress_mask = label("stress", lambda system: np.zeros((3, 3)))
    ends, has_end = label("relaxed_positions", lambda system: system.positions)
    targets = Targets(
        energy=torch.tensor(energy, dtype=torch.float64),
        forces=torch.from_numpy(np.concatenate(forces)).to(dtype),
        stress=torch.from_numpy(np.stack(stress)).to(dtype),
        energy_mask=energy_mask,
        forces_mask=has_forces.repeat_interleave(counts),
        stress_mask=stress_mask,
    )
    if not has_end.any():
        return targets
    ways = [
        nearest_image(end - system.positions, system.cell, system.pbc)
        for end, system in zip(ends, systems, strict=True)
    ]
    relaxation = torch.from_numpy(np.concatenate(ways)).to(dtype)
    return replace(targets, relaxation=relaxation, relaxation_mask=has_end.repeat_interleave(counts))
