"""The stress by its size: the unit where no frames can be compared."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from denskit.data.inspection import forces
from denskit.data.inspection.finding import Finding
from denskit.data.inspection.sample import Sample
from denskit.data.inspection.work import with_forces, with_stress
from denskit.units import GPA

LARGE = 0.6  # eV/Å^3 (100 GPa), of half of the frames
USUAL = 1.6  # stress over what forces would make, below; 0.5 to 11 in sound data
LEAST_FORCE = 0.02  # eV/Å
_UNITS = {"eV/Å^3": 1.0, "GPa": 1 / GPA, "kbar": 10 / GPA}


def unit(sample: Sample) -> Iterator[Finding]:
    """Stresses as large as those of another unit.

    Forces f on N atoms at distances d make stresses of about f d sqrt(N) / V.
    """
    frames = sample.frames
    compared = with_forces(sample)
    if with_stress(sample, compared) is not None or not frames.has["stress"].any():
        return
    if any(forces.unit(sample)) or (compared is not None and not compared.fine):
        return  # forces are no measure of the stress
    stressed = np.flatnonzero(frames.has["stress"] & frames.pbc.all(axis=1))
    size = np.sqrt((frames.stress[stressed] ** 2).mean(axis=(1, 2)))
    volume = np.abs(np.linalg.det(frames.cell[stressed]))
    counts = frames.sizes[stressed]
    force = sample.force_rms[stressed]
    told = (force > LEAST_FORCE) & (size > 0)
    if told.sum() >= 10:
        made = force * (volume / counts) ** (1 / 3) * np.sqrt(counts) / volume
        ratio = float(np.median(size[told] / made[told])) / USUAL
    else:
        ratio = 1 / GPA if np.median(size) > LARGE else 1.0
    name, factor = min(_UNITS.items(), key=lambda item: abs(np.log(ratio / item[1])))
    if factor != 1.0:
        yield sample.finding(
            "problem",
            f"half of the stresses are above {np.median(size):.3g} eV/Å^3 ({np.median(size) / GPA:.3g} GPa; rms)",
            f"the stress is in {name}, or a virial (not divided by the volume)",
            f"Multiply the stress of the file by {1 / factor:.7g}, or give a virial a name with virial in it",
        )
