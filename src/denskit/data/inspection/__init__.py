"""What looks wrong with structures and their labels: one small check for each thing, over a sample of the structures.

A check gets a :class:`Sample` and yields findings: a *problem* spoils a training, a *note* is worth knowing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from denskit.data.base import Source
from denskit.data.config import DataConfig
from denskit.data.inspection import forces, geometry, labels, stress, work
from denskit.data.inspection.finding import Finding
from denskit.data.inspection.overview import Inspection, overview
from denskit.data.inspection.sample import Sample, sample_of
from denskit.data.readers.formats import open_unchecked

__all__ = ["CHECKS", "Finding", "Inspection", "Sample", "findings_of", "inspect_file"]

SAMPLE = 1000  # structures looked at where they are read one by one
CHECKS: tuple[Callable[[Sample], Iterator[Finding]], ...] = (
    geometry.few,
    geometry.unsearchable,
    geometry.too_near,
    geometry.far_away,
    geometry.unit_of_length,
    labels.absent,
    labels.not_finite,
    labels.constant,
    work.energies_and_forces,
    work.energies_and_stress,
    forces.unit,
    forces.zero,
    forces.large,
    forces.unbalanced,
    stress.unit,
    labels.energy_groups,
    labels.energy_sums,
    geometry.twins,
    geometry.fixed,
    geometry.single_atoms,
    geometry.one_trajectory,
    work.nothing_compared,
)


def inspect_file(path: str | Path, config: DataConfig | None = None) -> Inspection:
    """Read a file and describe it; what is wrong with its frames is listed, not raised.

    Raises FileNotFoundError, and ValueError for a file of which nothing can be read or used.
    """
    source, notes = open_unchecked(path, config or DataConfig())
    sample, findings = sample_of(source, SAMPLE)
    with np.errstate(all="ignore"):
        return overview(path, sample, notes, _sorted(findings + _checked(sample)))


def findings_of(source: Source) -> list[Finding]:
    """What is found in a source of structures, problems first.  Raises ValueError where none can be read."""
    sample, findings = sample_of(source, SAMPLE)
    return _sorted(findings + _checked(sample))


def _checked(sample: Sample) -> list[Finding]:
    with np.errstate(all="ignore"):  # labels may be 1e300: what is not finite agrees with nothing
        return _sorted([finding for check in CHECKS for finding in check(sample)])


def _sorted(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: finding.severity != "problem")
