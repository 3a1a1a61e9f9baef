"""The contents of a file of structures in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols

from denskit.data.inspection.sample import Finding, Sample
from denskit.data.structure_arrays import LABELS

Range = tuple[float, float, float]  # smallest, mean, largest


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """A file's contents in eV, Å, eV/Å and eV/Å^3, and its findings."""

    file: str
    frames: int
    looked_at: int  # frames; all numbers below are theirs
    notes: list[str]  # units and fields
    elements: dict[str, int]  # atoms of each element
    compositions: int
    atoms: Range  # per frame
    periodicity: dict[str, int]  # frames by periodic directions
    fixed_atoms: int
    labels: dict[str, int]  # frames that have each
    energy: Range | None
    energy_per_atom: Range | None
    energy_std: float | None  # within compositions
    force_rms: float | None  # per component
    force_max: float | None  # norm
    stress_rms: float | None
    closest: float | None  # Å, between atoms of ``searched`` frames; None: no atom has another near it
    searched: int
    findings: list[Finding]

    @property
    def problems(self) -> list[Finding]:
        """The findings that are no notes."""
        return [finding for finding in self.findings if finding.severity == "problem"]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def overview(path: str | Path, sample: Sample, notes: list[str], findings: list[Finding]) -> Inspection:
    """The numbers of a sample, beside its findings."""
    structures, has = sample.structures, sample.structures.has
    symbols, counts = np.unique(structures.atomic_numbers, return_counts=True)
    forces = structures.forces[np.repeat(has["forces"], structures.sizes)]
    stress, energy = structures.stress[has["stress"]], structures.energy[has["energy"]]
    closest = sample.nearest.distance.min(initial=np.inf)
    return Inspection(
        file=str(path),
        frames=sample.total,
        looked_at=len(structures),
        notes=notes,
        elements={chemical_symbols[z]: int(count) for z, count in zip(symbols, counts, strict=True)},
        compositions=len({np.sort(structures.atomic_numbers[a:b]).tobytes() for a, b in pairwise(structures.starts)}),
        atoms=_range(structures.sizes),
        periodicity=dict(Counter("".join(np.array(list("xyz"))[row]) or "none" for row in structures.pbc)),
        fixed_atoms=int(structures.fixed.sum()),
        labels={label: int(has[label].sum()) for label in LABELS},
        energy=_range(energy) if len(energy) else None,
        energy_per_atom=_range(energy / structures.sizes[has["energy"]]) if len(energy) else None,
        energy_std=_std_within(sample) if len(energy) else None,
        force_rms=float(np.sqrt((forces**2).mean())) if len(forces) else None,
        force_max=float(np.linalg.norm(forces, axis=1).max()) if len(forces) else None,
        stress_rms=float(np.sqrt((stress**2).mean())) if len(stress) else None,
        closest=float(closest) if np.isfinite(closest) else None,
        searched=len(np.unique(sample.nearest.place)),
        findings=findings,
    )


def _range(values: np.ndarray) -> Range:
    return float(values.min()), float(values.mean()), float(values.max())


def _std_within(sample: Sample) -> float:
    """Deviation of the energies from the mean of their composition."""
    structures = sample.structures
    left = []
    for group in sample.groups:
        energy = structures.energy[group[structures.has["energy"][group]]]
        left.append(energy - energy.mean() if len(energy) else energy)
    return float(np.sqrt((np.concatenate(left) ** 2).mean()))
