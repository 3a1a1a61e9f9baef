"""The structures that are looked at: all of a file in memory, or a part of a large source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from denskit.batch import System
from denskit.data.base import Source, spaced_pairs
from denskit.data.inspection.finding import Finding
from denskit.data.inspection.nearest import Nearest, nearest_of
from denskit.data.inspection.pairs import Pairs, lattices, pairs_of
from denskit.data.inspection.split import energy_split
from denskit.data.structure_arrays import StructureArrays, geometry_defects

OUTSIDE = 1e6  # Å: coordinates beyond are those of an exploded simulation
UNREADABLE = 5  # records whose errors are shown


@dataclass(frozen=True)
class Sample:
    """Structures that can be looked at, with what several checks need of them."""

    frames: StructureArrays  # labels that are not finite count as absent
    index: np.ndarray  # [B] their numbers in the source
    total: int  # structures of the source
    not_finite: dict[str, np.ndarray]  # [B] bool of each label: it is there, but NaN or infinite

    @cached_property
    def force_rms(self) -> np.ndarray:
        """Of each frame's force components [B], eV/Å; NaN without forces."""
        mean = np.add.reduceat((self.frames.forces**2).mean(axis=1), self.frames.starts[:-1]) / self.frames.sizes
        return np.where(self.frames.has["forces"], np.sqrt(mean), np.nan)

    @cached_property
    def largest_force(self) -> np.ndarray:
        """Norm of each frame's largest force [B], eV/Å; NaN without forces."""
        norms = np.linalg.norm(self.frames.forces, axis=1)
        return np.where(self.frames.has["forces"], np.maximum.reduceat(norms, self.frames.starts[:-1]), np.nan)

    @cached_property
    def gaps(self) -> np.ndarray:
        """Largest gap (Å) between the atoms of each frame [B] along its open directions."""
        frames, gaps = self.frames, np.zeros(len(self.frames))
        for group in self.groups:
            pbc = frames.pbc[group[0]]
            atoms = frames.starts[group][:, None] + np.arange(frames.sizes[group[0]])
            across = lattices(frames.cell[group], pbc)[:, ~pbc]  # unit vectors
            heights = np.sort(frames.positions[atoms] @ across.transpose(0, 2, 1), axis=1)
            gaps[group] = np.diff(heights, axis=1).max(axis=(1, 2), initial=0.0)
        return gaps

    def wrapped(self, place: int, vectors: np.ndarray) -> np.ndarray:
        """Vectors [..., 3] (Å) in a frame to the nearest image (exact where they are short against the cell)."""
        pbc = self.frames.pbc[place]
        if not pbc.any():
            return vectors
        lattice = lattices(self.frames.cell[place][None], pbc)[0]
        scaled = vectors @ np.linalg.inv(lattice)
        scaled[..., pbc] -= np.round(scaled[..., pbc])
        return scaled @ lattice

    @cached_property
    def groups(self) -> list[np.ndarray]:
        """Structures with the same atoms in the same order and the same periodic directions, largest group first."""
        kinds: dict[bytes, list[int]] = {}
        for place, (begin, end) in enumerate(pairwise(self.frames.starts)):
            atoms = self.frames.atomic_numbers[begin:end].tobytes()
            kinds.setdefault(atoms + self.frames.pbc[place].tobytes(), []).append(place)
        return sorted((np.array(group) for group in kinds.values()), key=len, reverse=True)

    @cached_property
    def splits(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Structures of one composition with energies in two groups without a reason: the smaller, the larger."""
        found = (energy_split(self.frames, group) for group in self.groups)
        return [split for split in found if split is not None]

    @cached_property
    def pairs(self) -> Pairs:
        """Pairs of frames that differ by little, of one group of energies."""
        pairs = pairs_of(self.frames, self.groups)
        odd = np.zeros(len(self.frames), dtype=bool)
        for few, _ in self.splits:
            odd[few] = True
        return pairs.take(odd[pairs.first] == odd[pairs.second])

    @cached_property
    def nearest(self) -> Nearest:
        """Distances of atoms to their nearest neighbours."""
        return nearest_of(self.frames)

    def finding(
        self,
        severity: Literal["problem", "note"],
        found: str,
        means: str = "",
        advice: str = "",
        *,
        of: np.ndarray | None = None,
    ) -> Finding:
        """A finding about the frames ``of``: places in the sample, or a mask."""
        places = np.zeros(0, dtype=np.int64) if of is None else np.flatnonzero(of) if of.dtype == bool else of
        frames = tuple(int(number) for number in np.sort(self.index[places]))
        return Finding(severity=severity, found=found, means=means, advice=advice, frames=frames)


def sample_of(source: Source, count: int) -> tuple[Sample, list[Finding]]:
    """At most ``count`` structures of a source (all of a file in memory), and what is wrong with those set aside.

    Evenly spaced pairs of neighbours, so that frames of one trajectory can be compared.
    Raises ValueError where no structure can be read.
    """
    if isinstance(source, StructureArrays):
        return _sound(source, np.arange(len(source)), len(source))
    source = source.in_file_order()
    chosen = spaced_pairs(len(source), count)
    systems: list[System] = []
    errors: list[str] = []
    for place in chosen:
        try:
            systems.append(source[int(place)])
        except ValueError as error:
            errors.append(str(error))
    if not systems:
        raise ValueError(errors[0])
    systems.sort(key=lambda system: system.index)
    findings = [Finding(severity="problem", found=error) for error in errors[:UNREADABLE]]
    if len(errors) > UNREADABLE:
        findings.append(Finding(severity="problem", found=f"{len(errors)} records in all that cannot be used"))
    index = np.array([system.index for system in systems])
    sample, broken = _sound(StructureArrays.from_systems(systems, name=source.name), index, len(source))
    if len(chosen) < len(source):
        part = f"{len(chosen):,} of {len(source):,} structures were looked at, evenly spaced"
        findings.append(Finding(severity="note", found=part))
    return sample, findings + broken


def _sound(structures: StructureArrays, index: np.ndarray, total: int) -> tuple[Sample, list[Finding]]:
    """The structures whose geometry means something, and findings about the others."""
    wrong = geometry_defects(structures)
    inside = structures.all_atoms((np.abs(structures.positions) < OUTSIDE).all(axis=1))
    inside &= (np.abs(structures.cell) < OUTSIDE).all(axis=(1, 2))
    bad = np.logical_or.reduce([np.zeros(len(structures), dtype=bool), *wrong.values()])
    if (~inside & ~bad).any():
        wrong[f"coordinates beyond {OUTSIDE:g} Å, as of an exploded simulation"] = ~inside & ~bad
    findings = [
        Finding(severity="problem", found=words, advice="Remove these frames", frames=tuple(index[mask].tolist()))
        for words, mask in wrong.items()
    ]
    bad |= ~inside
    if bad.all():
        raise ValueError(f"{structures.name}: no frame can be used. {findings[0]}")
    if bad.any():
        sound = StructureArrays.from_systems(
            (structures[int(place)] for place in np.flatnonzero(~bad)), name=structures.name
        )
        structures, index = replace(sound, keys=structures.keys), index[~bad]
    lost = structures.not_finite()
    return Sample(structures.without_labels(lost), index, total, lost), findings
