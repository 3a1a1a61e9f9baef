"""The unit of the stress by its size, where no structures can be compared."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from denskit.data.config import STRESS_UNITS
from denskit.data.inspection import forces
from denskit.data.inspection.energy_consistency import with_forces, with_stress
from denskit.data.inspection.finding import Finding
from denskit.data.inspection.meanings import stress_in
from denskit.data.inspection.sample import Sample
from denskit.data.periodicity import VACUUM, has_vacuum
from denskit.units import GPA

LARGE = 0.6  # eV/Å^3 (100 GPa), of half of the structures
USUAL = 1.6  # stress over the estimate from forces below; 0.5 to 11 in sound data
LEAST_FORCE = 0.02  # eV/Å
FEW = 4  # crystals of the same atoms, which could have had several volumes
SAME_VOLUME = 0.005  # relative range; simulations at constant pressure have more
_BETWEEN = np.log(1.6)  # two units are named where the size lies between those that they would have
_UNITS = {"eV/Å^3": 1.0, **{name: 1 / size for name, size in STRESS_UNITS.items()}}


def vacuum(sample: Sample) -> Iterator[Finding]:
    """Stresses of slabs and molecules in periodic boxes, which are averages over the vacuum."""
    structures = sample.structures
    empty = structures.has["stress"].copy()
    empty[empty] = [has_vacuum(structures[place]) for place in np.flatnonzero(empty).tolist()]
    found = f"frames with a stress have more than {VACUUM:g} Å of vacuum"
    means = "the stress of slabs and molecules is an average over the vacuum"
    advice = "Make them not periodic across the vacuum (pbc F), and say data.missing=mask, or task.stress_weight=0"
    yield from sample.marked(empty, "note", found, means, advice)


def one_volume(sample: Sample) -> Iterator[Finding]:
    """Periodic structures with a stress, those of the same atoms in one volume, as of simulations in a fixed cell."""
    held = sample.structures
    stressed = held.has["stress"] & held.pbc.all(axis=1)
    volumes = np.abs(np.linalg.det(held.cell))
    groups = [own for group in sample.groups if len(own := group[stressed[group]]) > 1]
    repeated = sum(map(len, groups))
    if 2 * repeated <= stressed.sum() or any(np.ptp(volumes[own]) > SAME_VOLUME * volumes[own].min() for own in groups):
        return
    if not any(len(own) >= FEW for own in groups) or any(has_vacuum(held[int(own[0])]) for own in groups):
        return
    yield sample.finding(
        "note",
        "periodic structures of the same atoms all have one volume",
        "how they respond to another one is known by their stress alone",
        "For equations of state, elastic constants and relaxed cells add compressed, expanded and sheared cells, in "
        "steps of at most 2 %: without any, bulk moduli of four metals came out a quarter to a half too small; with "
        "some, C12 and C44 were right, and C11 too small, most in steps of 5 % (docs/results_crystals.md)",
    )


def unit(sample: Sample) -> Iterator[Finding]:
    """Stresses as large as in another unit.

    Forces f on N atoms at distances d make stresses of about f d sqrt(N) / V.
    """
    structures = sample.structures
    compared = with_forces(sample)
    if with_stress(sample, compared) is not None or not structures.has["stress"].any():
        return
    if any(forces.unit(sample)) or (compared is not None and not compared.fine):
        return  # forces are no measure of the stress
    stressed = np.flatnonzero(structures.has["stress"] & structures.pbc.all(axis=1))
    size = np.sqrt((structures.stress[stressed] ** 2).mean(axis=(1, 2)))
    volume, atoms = np.abs(np.linalg.det(structures.cell[stressed])), structures.sizes[stressed]
    force = sample.force_rms[stressed]
    comparable = (force > LEAST_FORCE) & (size > 0)
    if comparable.sum() >= 10:
        estimate = force * (volume / atoms) ** (1 / 3) * np.sqrt(atoms) / volume
        ratio = float(np.median(size[comparable] / estimate[comparable])) / USUAL
        off = {name: abs(np.log(ratio / factor)) for name, factor in _UNITS.items()}
        likely = [name for name in sorted(off, key=off.__getitem__) if off[name] < min(off.values()) + _BETWEEN]
    else:  # the size alone cannot tell one large unit from another
        likely = list(STRESS_UNITS) if np.median(size) > LARGE else ["eV/Å^3"]
    if "eV/Å^3" not in likely:
        yield sample.finding(
            "problem",
            f"half of the stresses are above {np.median(size):.3g} eV/Å^3 ({np.median(size) / GPA:.3g} GPa; rms)",
            f"the stress is in {' or '.join(likely)}, or a virial (not divided by the volume)",
            f"{stress_in(' or '.join(likely))}, or give a virial a name with virial in it. "
            "The sign is not tested here: VASP's own is the other one, data.stress_sign=compression",
        )
