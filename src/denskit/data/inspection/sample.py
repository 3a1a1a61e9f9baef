"""The structures that the checks look at, all of a file in memory or a part of a large source, and their findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from denskit.batch import System
from denskit.data.base import MARKS, Mark, Source, Subset, spaced_pairs
from denskit.data.inspection.energy_groups import energy_split
from denskit.data.inspection.nearest import Nearest, nearest_of
from denskit.data.inspection.pairs import Pairs, pairs_of
from denskit.data.periodicity import open_gaps
from denskit.data.records import Joined, Records
from denskit.data.structure_arrays import Missing, StructureArrays, geometry_defects, numbered, remedy

OUTSIDE = 1e6  # Å: larger coordinates come from exploded simulations
UNREADABLE = 5  # records whose errors are shown
AGAIN = "No setting changes the units of shards: convert the original again (denskit data convert)"
_OF_FILES = re.compile(r"data\.(units|forces_unit|stress_unit|stress_sign)=")  # settings that shards refuse
Severity = Literal["problem", "note"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found, in words for a user."""

    severity: Severity
    found: str  # with numbers
    means: str = ""  # the most likely cause
    advice: str = ""  # the remedy, with the option
    frames: tuple[int, ...] = ()  # numbers of all frames concerned, counted from 0
    where: str = ""  # these frames in words, where numbers alone do not tell: those of several files

    def __str__(self) -> str:
        """One line."""
        where = f" ({self.where or numbered(np.array(self.frames), counted=False)})" if self.frames else ""
        means = f": {self.means}" if self.means else ""
        advice = f". {self.advice}" if self.advice else ""
        return f"{self.severity}: {self.found}{where}{means}{advice}"


@dataclass(frozen=True)
class Sample:
    """Structures of sound geometry, and quantities that several checks need."""

    structures: StructureArrays  # labels that are not finite count as absent
    index: np.ndarray  # [B] their numbers in the source
    total: int  # structures of the source
    not_finite: dict[str, np.ndarray]  # label -> [B] bool, it is NaN or infinite
    missing: Missing = "error"  # what the settings say of labels that are absent or not finite
    required: Sequence[str] = ("energy", "forces")  # labels that a training wants
    in_shards: bool = False  # records, whose units no setting changes
    by_mark: Mapping[Mark, tuple[int, ...]] = field(default_factory=dict)  # numbers: of all structures in memory

    @cached_property
    def force_rms(self) -> np.ndarray:
        """Root mean square of each structure's force components [B], eV/Å; NaN without forces."""
        held = self.structures
        mean = np.add.reduceat((held.forces**2).mean(axis=1), held.starts[:-1]) / held.sizes
        return np.where(held.has["forces"], np.sqrt(mean), np.nan)

    @cached_property
    def largest_force(self) -> np.ndarray:
        """Norm of each structure's largest force [B], eV/Å; NaN without forces."""
        norms = np.linalg.norm(self.structures.forces, axis=1)
        largest = np.maximum.reduceat(norms, self.structures.starts[:-1])
        return np.where(self.structures.has["forces"], largest, np.nan)

    @cached_property
    def gaps(self) -> np.ndarray:
        """Largest gap (Å) between the atoms of each structure [B] along its open directions."""
        held, gaps = self.structures, np.zeros(len(self.structures))
        for group in self.groups:
            gaps[group] = open_gaps(held.positions[held.atom_rows(group)], held.cell[group], held.pbc[group[0]])
        return gaps

    @cached_property
    def groups(self) -> list[np.ndarray]:
        """Structures with the same atoms in the same order and the same periodic directions, largest group first."""
        held, kinds = self.structures, dict[bytes, list[int]]()
        for place, (begin, end) in enumerate(pairwise(held.starts)):
            kind = held.atomic_numbers[begin:end].tobytes() + held.pbc[place].tobytes()
            kinds.setdefault(kind, []).append(place)
        return sorted((np.array(group) for group in kinds.values()), key=len, reverse=True)

    @cached_property
    def splits(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Structures of one composition with energies in two groups without a reason: the smaller, the larger."""
        found = (energy_split(self.structures, group) for group in self.groups)
        return [split for split in found if split is not None]

    @cached_property
    def pairs(self) -> Pairs:
        """Pairs of near structures, both of one group of energies."""
        pairs = pairs_of(self.structures, self.groups)
        odd = np.zeros(len(self.structures), dtype=bool)
        for few, _ in self.splits:
            odd[few] = True
        return pairs.take(odd[pairs.first] == odd[pairs.second])

    @cached_property
    def nearest(self) -> Nearest:
        """Distances of atoms to their nearest neighbours."""
        return nearest_of(self.structures)

    def finding(
        self, severity: Severity, found: str, means: str = "", advice: str = "", *, of: np.ndarray | None = None
    ) -> Finding:
        """A finding about the structures ``of``: places in the sample, or a mask."""
        places = np.zeros(0, dtype=np.int64) if of is None else np.flatnonzero(of) if of.dtype == bool else of
        frames = tuple(int(number) for number in np.sort(self.index[places]))
        if self.in_shards and _OF_FILES.search(advice) and AGAIN not in advice:
            advice = f"{AGAIN}. {advice}"
        return Finding(severity=severity, found=found, means=means, advice=advice, frames=frames)

    def marked(
        self, mask: np.ndarray, severity: Severity, found: str, means: str = "", advice: str = ""
    ) -> Iterator[Finding]:
        """A finding about the structures where ``mask`` [B] is True, if there are any."""
        if mask.any():
            yield self.finding(severity, found, means, advice, of=mask)


def sample_of(source: Source, count: int) -> tuple[Sample, list[Finding]]:
    """At most ``count`` structures of a source (all of a file in memory), and findings about unusable ones.

    Evenly spaced pairs of neighbours, so that frames of one trajectory can be compared.
    Raises ValueError where no structure can be read.
    """
    if isinstance(source, StructureArrays):
        sample, findings = _sound(source, np.arange(len(source)), len(source))
        return replace(sample, by_mark=_by_mark(source, [])), findings
    source = source.in_file_order()
    chosen = spaced_pairs(len(source), count)
    systems: list[System] = []
    errors: list[str] = []
    for place in chosen.tolist():
        try:
            systems.append(source[place])
        except ValueError as error:
            errors.append(str(error))
    if not systems:
        raise ValueError(errors[0])
    systems.sort(key=lambda system: system.index)
    index = np.array([system.index for system in systems])
    looked_at = replace(StructureArrays.from_systems(systems, name=source.name), unit=source.unit)
    sample, broken = _sound(looked_at, index, len(source))
    findings = [Finding(severity="problem", found=error) for error in errors[:UNREADABLE]]
    if len(errors) > UNREADABLE:
        findings.append(Finding(severity="problem", found=f"{len(errors)} records in all that cannot be used"))
    if len(chosen) < len(source):
        part = f"{len(chosen):,} of {len(source):,} structures were looked at, evenly spaced"
        findings.append(Finding(severity="note", found=part))
    return replace(sample, in_shards=_in_shards(source), by_mark=_by_mark(source, systems)), findings + broken


def _by_mark(source: Source, looked_at: Sequence[System]) -> dict[Mark, tuple[int, ...]]:
    """Numbers of the structures with each mark: of all in memory, and of those ``looked_at``."""
    found: dict[Mark, tuple[int, ...]] = {}
    for mark in MARKS:
        inside = {source[int(place)].index for place in source.places_of(mark)}
        found[mark] = tuple(sorted(inside | {system.index for system in looked_at if getattr(system, mark)}))
    return found


def _in_shards(source: Source) -> bool:
    while isinstance(source, Subset):
        source = source.source
    parts = source.sources if isinstance(source, Joined) and not isinstance(source, Records) else (source,)
    return all(isinstance(part, Records) for part in parts)


def _sound(structures: StructureArrays, index: np.ndarray, total: int) -> tuple[Sample, list[Finding]]:
    """The structures of sound geometry, and findings about the others."""
    wrong = geometry_defects(structures)
    bad = np.logical_or.reduce([np.zeros(len(structures), dtype=bool), *wrong.values()])
    inside = structures.all_atoms((np.abs(structures.positions) < OUTSIDE).all(axis=1))
    outside = ~bad & ~(inside & (np.abs(structures.cell) < OUTSIDE).all(axis=(1, 2)))
    if outside.any():
        wrong[f"coordinates beyond {OUTSIDE:g} Å, as of an exploded simulation"] = outside
    findings = [
        Finding(severity="problem", found=words, advice=remedy(words, "Remove"), frames=tuple(index[mask].tolist()))
        for words, mask in wrong.items()
    ]
    sound = np.flatnonzero(~(bad | outside))
    if not len(sound):
        raise ValueError(f"{structures.name}: no frame can be used. {findings[0]}")
    if len(sound) < len(structures):
        kept = StructureArrays.from_systems((structures[place] for place in sound.tolist()), name=structures.name)
        structures, index = replace(kept, keys=structures.keys, unit=structures.unit), index[sound]
    lost = structures.not_finite()
    return Sample(structures.without_labels(lost), index, total, lost), findings
