"""The unit of the stress by its size, where no structures can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from denskit.data.config import STRESS_UNITS
from denskit.data.inspection import forces
from denskit.data.inspection.energy_consistency import energies_and_stress, with_forces, with_stress
from denskit.data.inspection.meanings import stress_in
from denskit.data.inspection.sample import Finding, Sample
from denskit.data.periodicity import VACUUM, has_vacuum
from denskit.units import GPA

LARGE = 0.6  # eV/Å^3 (100 GPa), of half of the structures
USUAL = 1.6  # stress over the estimate from forces below; 0.5 to 11 in sound data, which is
WITHIN = 7.0  # times less or more
ENOUGH = 10  # crystals with forces, whose median that is
TWO_UNITS, APART = np.log(50.0), 5.0  # between kinds of stresses: in log of the size, and in deviations within a kind
VOLUMES, MANY = 0.5, 30  # deviation of the volumes' log, and crystals, that tell a virial by the
NARROWER = 0.85  # times smaller deviation of what is then no stress; 0.7 of MPtrj's virials, 1.4 of its stresses
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
        "their response to another one is known by the stress alone, whose sign cannot be tested here (VASP's is the "
        "opposite: data.stress_sign=compression)",
        "For equations of state, elastic constants and relaxed cells add compressed, expanded and sheared cells, in "
        "steps of at most 2 % (docs/results_crystals.md)",
    )


@dataclass(frozen=True)
class _Sizes:
    """Stresses of crystals with forces, over those that the forces make: f on N atoms at distances d about
    f d sqrt(N) / V."""

    places: np.ndarray  # [M] in the sample
    size: np.ndarray  # [M] eV/Å^3, rms
    ratio: np.ndarray  # [M] of the size to the estimate; about USUAL
    volume: np.ndarray  # [M] Å^3


def _sizes(sample: Sample) -> _Sizes:
    structures = sample.structures
    places = np.flatnonzero(structures.has["stress"] & structures.pbc.all(axis=1))
    size = np.sqrt((structures.stress[places] ** 2).mean(axis=(1, 2)))
    comparable = (sample.force_rms[places] > LEAST_FORCE) & (size > 0)
    places, size = places[comparable], size[comparable]
    volume, atoms = np.abs(np.linalg.det(structures.cell[places])), structures.sizes[places]
    estimate = sample.force_rms[places] * (volume / atoms) ** (1 / 3) * np.sqrt(atoms) / volume
    return _Sizes(places, size, size / estimate, volume)


def two_units(sample: Sample) -> Iterator[Finding]:
    """Stresses of two sizes, the larger beyond those of solids."""
    if any(finding.frames for finding in energies_and_stress(sample)):
        return  # which has named them
    sizes = _sizes(sample)
    large = _larger_kind(sizes.ratio)
    if not large.any() or np.median(sizes.size[large]) < LARGE:
        return
    usual, most = (np.median(sizes.size[kind]) / GPA for kind in (~large, large))
    yield sample.finding(
        "problem",
        f"stresses are of two sizes, about {most:.3g} GPa in {large.sum()} frames and {usual:.3g} in {(~large).sum()}",
        f"the larger ones are in {' or '.join(STRESS_UNITS)}, the others in eV/Å^3, or they are virials",
        "Write all in one unit and sign",
        of=sizes.places[large],
    )


def _larger_kind(ratio: np.ndarray) -> np.ndarray:
    """Those of two kinds [M] that are the larger, where two normal distributions of log(ratio) are far apart; or none.

    The kinds are those with the smallest deviations within them (Otsu, IEEE Trans. Syst. Man Cybern. 9, 62 (1979)).
    """
    least = max(FEW, len(ratio) // 100)
    low = np.arange(least, len(ratio) - least + 1)  # how many are of the smaller kind
    if not len(low):
        return np.zeros(len(ratio), dtype=bool)
    value = np.log(ratio) - np.log(ratio).mean()
    order = np.sort(value)
    low_mean = np.cumsum(order)[low - 1] / low
    apart = -low_mean * len(value) / (len(value) - low)  # the mean of all is 0
    within = np.sqrt(np.maximum(value.var() - apart**2 * low * (len(value) - low) / len(value) ** 2, 0))
    best = within.argmin()
    larger: np.ndarray = value >= order[low[best]]
    return larger & bool(apart[best] > max(TWO_UNITS, APART * within[best]))


def unit(sample: Sample) -> Iterator[Finding]:
    """Stresses as large as in another unit."""
    structures = sample.structures
    compared = with_forces(sample)
    by_energies = with_stress(sample, compared)
    if (by_energies is not None and by_energies.clear) or not structures.has["stress"].any():
        return
    if any(forces.unit(sample)) or (compared is not None and not compared.fine):
        return  # forces are no measure of the stress
    if any(two_units(sample)) or any(finding.frames for finding in energies_and_stress(sample)):
        return  # some are, which is another finding
    periodic = structures.has["stress"] & structures.pbc.all(axis=1)
    size = float(np.median(np.sqrt((structures.stress[periodic] ** 2).mean(axis=(1, 2)))))
    sizes = _sizes(sample)
    if len(sizes.ratio) >= ENOUGH:
        ratio = float(np.median(sizes.ratio)) / USUAL
        off = {name: abs(np.log(ratio / factor)) for name, factor in _UNITS.items()}
        likely = [name for name in sorted(off, key=off.__getitem__) if off[name] < min(off.values()) + _BETWEEN]
        beyond, virial = ratio > WITHIN * max(_UNITS.values()), _virial(sizes)
    else:  # the size alone cannot tell one large unit from another
        likely = list(STRESS_UNITS) if size > LARGE else ["eV/Å^3"]
        beyond, virial = size > LARGE * max(_UNITS.values()), "perhaps"
    if "eV/Å^3" not in likely:
        found = f"half of the stresses are above {size:.3g} eV/Å^3 ({size / GPA:.3g} GPa; rms)"
        yield sample.finding("problem", found, *_too_large([] if beyond else likely, virial))


def _virial(sizes: _Sizes) -> Literal["yes", "no", "perhaps"]:
    """Whether the numbers are virials: as large, and growing with the volume."""
    by_volume = sizes.ratio / sizes.volume
    if abs(np.log(np.median(by_volume) / USUAL)) > np.log(WITHIN):
        return "no"
    if len(by_volume) < MANY or np.log(sizes.volume).std() < VOLUMES:
        return "perhaps"
    spread = np.log(by_volume).std() / np.log(sizes.ratio).std()
    return "yes" if spread < NARROWER else "no" if spread > 1 / NARROWER else "perhaps"


def _too_large(units: list[str], virial: Literal["yes", "no", "perhaps"]) -> tuple[str, str]:
    """Meaning and remedy of stresses that are as large as in ``units``; in none: larger than in any."""
    name = "a name with virial in it"
    if virial == "yes":
        return "they grow with the volume: virials, not divided by it", f"Give them {name}"
    named = " or ".join(units)
    means, advice = f"the stress is in {named}", stress_in(named)
    if not units:
        means = f"larger than in {' or '.join(STRESS_UNITS)}, perhaps in MPa, bar or Pa"
        advice = f"Convert them in the file: 1 MPa is {GPA / 1e3:.4g} eV/Å^3, 1 bar {GPA / 1e4:.4g}"
    if virial == "perhaps":
        means, advice = f"{means}, or a virial (not divided by the volume)", f"{advice}, or give a virial {name}"
    return means, f"{advice}. The sign is not tested here: VASP's own is the other one, data.stress_sign=compression"
