"""Checks of structures and their labels, each a small function over a sample of the structures.

A check gets a :class:`Sample` and yields findings: a *problem* spoils a training, a *note* is worth knowing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from denskit.data.base import Source, Subset, spaced_pairs
from denskit.data.config import DataConfig
from denskit.data.inspection import energy_consistency, forces, geometry, labels, stress
from denskit.data.inspection.overview import Inspection, overview
from denskit.data.inspection.sample import Finding, Sample, sample_of
from denskit.data.readers.folders import read_given
from denskit.data.readers.formats import open_unchecked, require_effect
from denskit.data.records import numbered_in
from denskit.data.structure_arrays import Missing

__all__ = ["CHECKS", "Finding", "Inspection", "Sample", "findings_of", "inspect_file"]

_WARNING = "warning: "  # of a reader
SAMPLE = 1000  # structures looked at in sources that are not in memory
CHECKS: tuple[Callable[[Sample], Iterator[Finding]], ...] = (
    geometry.unsearchable,
    geometry.too_near,
    geometry.crowded,
    geometry.far_away,
    geometry.unit_of_length,
    geometry.open_cells,
    labels.absent,
    labels.unread,
    labels.not_finite,
    labels.constant,
    labels.of_model,
    labels.unconverged,
    labels.electrons,
    energy_consistency.energies_and_forces,
    energy_consistency.energies_and_stress,
    forces.unit,
    forces.zero,
    forces.large,
    forces.unbalanced,
    stress.two_units,
    stress.unit,
    stress.vacuum,
    stress.one_volume,
    labels.by_the_atom,
    labels.energy_groups,
    labels.energy_sums,
    geometry.twins,
    geometry.fixed,
    geometry.single_atoms,
    geometry.one_trajectory,
    energy_consistency.nothing_compared,
)


def inspect_file(path: str | Path, config: DataConfig | None = None) -> Inspection:
    """Read a file, or the files of a folder, and describe them; defects of frames are listed, not raised.

    Raises FileNotFoundError, and ValueError for a file without a usable structure and for settings without effect.
    """
    config = config or DataConfig()
    require_effect(config, [path])
    source, said = read_given(path, config, open_unchecked)
    sample, findings = sample_of(source, SAMPLE)
    notes = [line for line in said if not line.startswith(_WARNING)]
    findings += [
        Finding(severity="problem", found=line.removeprefix(_WARNING)) for line in said if line.startswith(_WARNING)
    ]
    sample = replace(sample, missing=config.missing)
    findings += geometry.few(sample)
    with np.errstate(all="ignore"):
        return overview(path, sample, notes, _checked(sample, findings))


def findings_of(
    source: Source, missing: Missing = "error", required: Sequence[str] = ("energy", "forces")
) -> list[Finding]:
    """The findings about a source that is read with ``data.missing`` for a training on the labels ``required``,
    problems first.

    Raises ValueError where no structure can be read.
    """
    sample, findings = sample_of(source, SAMPLE)
    found = _checked(replace(sample, missing=missing, required=required), findings)
    return [
        replace(finding, where=numbered_in(source, finding.frames, counted=False)) if finding.frames else finding
        for finding in found
    ]


def wrong_units_or_signs(source: Source) -> list[str]:
    """Findings about a source whose labels seem to have another unit than they were read in, or sign, as text."""
    try:
        sample, _ = sample_of(Subset(source, spaced_pairs(len(source), SAMPLE), source.name), SAMPLE)
    except ValueError:  # no structure can be read: whoever uses one says so
        return []
    with np.errstate(all="ignore"):
        found = [*energy_consistency.energies_and_forces(sample), *forces.unit(sample)]
    return [str(finding).removeprefix("problem: ") for finding in found if not finding.frames]


def _checked(sample: Sample, findings: list[Finding]) -> list[Finding]:
    """``findings`` and the findings of all checks, problems first."""
    with np.errstate(all="ignore"):  # labels may be 1e300: comparisons with inf and NaN are False
        found = findings + [finding for check in CHECKS for finding in check(sample)]
    return sorted(found, key=lambda finding: finding.severity != "problem")
