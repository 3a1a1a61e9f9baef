"""Geometries: atoms too near or far away, twins, fixed atoms, too few structures."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np

from denskit.data.crowding import CROWDED, REACH, neighbors_expected
from denskit.data.inspection.nearest import SQUEEZED
from denskit.data.inspection.sample import Finding, Sample
from denskit.data.overlaps import SHORTEST
from denskit.data.periodicity import EMPTY, GONE, layer_gap
from denskit.data.structure_arrays import close_pair
from denskit.runtime.progress import counted

OVERLAP = 0.3  # of the sum of covalent radii
TWIN_ENERGY, TWIN_FORCE = 2e-3, 0.1  # eV an atom, eV/Å: unconverged calculations differ by less
STRETCHED = 1.6  # times the sum of covalent radii, in half of the structures: no bonds are that long
ALL_STRETCHED = 1.2  # the same, in nearly all: in Å some bonds of a scan have their length, in Bohr none (1.9)
FEW = 0.05  # of the atoms
FILLED = 3.0  # Å between planes of atoms: molecules in boxes have more to their images
NOBLE_GASES = (2, 10, 18, 36, 54, 86)  # they form no bonds


def unsearchable(sample: Sample) -> Iterator[Finding]:
    """Structures whose neighbours cannot be searched."""
    for place, reason in sample.nearest.refused.items():
        if sample.gaps[place] <= GONE:
            yield sample.finding("problem", reason, of=np.array([place]))


def too_near(sample: Sample) -> Iterator[Finding]:
    """Atoms nearer than any bond: in all structures by distance, in a part of them also by their elements."""
    nearest, structures = sample.nearest, sample.structures
    near = (nearest.distance < SHORTEST) | (nearest.ratio < OVERLAP)
    wrong = np.zeros(len(structures), dtype=bool)
    wrong[nearest.place[near]] = True
    for place in sorted(set(range(len(structures))) - set(nearest.place.tolist()) - set(nearest.refused)):
        system = structures[place]
        wrong[place] = close_pair(system.positions, system.cell, system.pbc, within=SHORTEST) is not None
    apart = f"only {nearest.distance[near].min():.3g}" if near.any() else f"less than {SHORTEST:g}"
    means = "atoms on top of each other, nearer than any bond"
    yield from sample.marked(wrong, "problem", f"atoms {apart} Å apart", means, "Remove these frames")
    tight = ~near & (nearest.ratio < SQUEEZED)
    if tight.any():
        found = f"atoms {nearest.distance[tight].min():.3g} Å apart, less than half of a bond"
        yield sample.finding("note", found, "structures far from equilibrium", of=np.unique(nearest.place[tight]))


def squeezed(sample: Sample) -> np.ndarray:
    """Structures [S] bool with atoms nearer than half of a bond, among those whose distances were looked at."""
    found = np.zeros(len(sample.structures), dtype=bool)
    found[sample.nearest.place[sample.nearest.ratio < SQUEEZED]] = True
    return found


def far_away(sample: Sample) -> Iterator[Finding]:
    """Parts of a structure far away along open directions; atoms without neighbours."""
    gaps, nearest = sample.gaps, sample.nearest
    found = f"parts of structures are up to {gaps.max():.4g} Å apart"
    means = "atoms have flown away, as in an exploded simulation"
    yield from sample.marked(gaps > GONE, "problem", found, means, "Remove these frames")
    alone = np.isinf(nearest.distance) & (sample.structures.sizes[nearest.place] > 1) & (gaps[nearest.place] <= GONE)
    if alone.any():
        found = f"{counted(alone.sum(), 'atom')} without any other within {REACH:g} Å"
        yield sample.finding("note", found, "to most models they are free atoms", of=np.unique(nearest.place[alone]))


def unit_of_length(sample: Sample) -> Iterator[Finding]:
    """Distances that are too long for Å, as numbers in Bohr are."""
    nearest, structures = sample.nearest, sample.structures
    numbers = structures.atomic_numbers[structures.starts[nearest.place] + nearest.atom]
    bonded = np.isfinite(nearest.ratio) & ~np.isin(numbers, NOBLE_GASES)
    ratios = nearest.ratio[bonded]
    if bonded.sum() < 2 or np.quantile(ratios, FEW) < ALL_STRETCHED:
        return
    if (ratio := float(np.median(ratios))) > STRETCHED:
        found = f"half of the atoms are more than {ratio:.2f} bond lengths from the next one"
        advice = "Multiply positions and cells of the file by 0.5291772"
        yield sample.finding("problem", found, "positions are in Bohr, not in Å, or scaled otherwise", advice)


def open_cells(sample: Sample) -> Iterator[Finding]:
    """Crystals whose cell is given, but not as periodic."""
    structures = sample.structures
    found = np.zeros(len(structures), dtype=bool)
    for place, system in enumerate(structures):
        volume = abs(np.linalg.det(system.cell))
        if len(system) > 1 and not system.pbc.any() and volume > EMPTY:
            found[place] = layer_gap(system.positions, system.cell) < FILLED
    yield from sample.marked(
        found, "problem", "a cell that the atoms fill, but no periodic direction (pbc F F F)",
        "atoms at its faces get no neighbours across them",
        'If they are periodic, write pbc="T T T" into the file (ASE: atoms.pbc = True)',
    )  # fmt: skip


def twins(sample: Sample) -> Iterator[Finding]:
    """Geometries that occur twice, to 1e-6 Å."""
    structures = sample.structures
    first: dict[bytes, int] = {}
    again, different = np.zeros((2, len(structures)), dtype=bool)
    for place, system in enumerate(structures):
        rounded = np.round(np.concatenate([system.positions, system.cell]), 6) + 0.0  # no -0
        key = blake2b(system.atomic_numbers.tobytes() + rounded.tobytes(), digest_size=16).digest()
        earlier = first.setdefault(key, place)
        again[place] = earlier != place
        different[place] = again[place] and _differ(sample, earlier, place)
    found, means = "the geometry of an earlier frame", "two methods, or calculations that did not converge"
    yield from sample.marked(different, "problem", f"{found} with other labels", means, "Remove one of each")
    advice = "Remove them, or divide by data.split.mode=blocks or data.group_key=KEY"
    yield from sample.marked(again, "note", f"{found} again", "a random split may put twins on both sides", advice)


def _differ(sample: Sample, one: int, other: int) -> bool:
    """Whether labels of two structures differ by more than in unconverged calculations."""
    first, second = sample.structures[one], sample.structures[other]
    energies = [system.energy for system in (first, second) if system.energy is not None]
    if len(energies) == 2 and abs(energies[0] - energies[1]) > TWIN_ENERGY * len(first):
        return True
    if first.forces is None or second.forces is None:
        return False
    return bool(np.abs(first.forces - second.forces).max() > TWIN_FORCE)


def few(sample: Sample) -> Iterator[Finding]:
    """Too few labelled structures to train on."""
    labelled = sample.structures.has["energy"] | sample.structures.has["forces"]
    if sample.total < 3 and labelled.any():
        means = "too few to train on: training, validation and test want one each"
        yield sample.finding("problem", f"only {counted(sample.total, 'frame')} in the file", means)


def crowded(sample: Sample) -> Iterator[Finding]:
    """Cells so small that the neighbours make a training slow."""
    structures = sample.structures
    count = neighbors_expected(structures.sizes, structures.cell, structures.pbc)
    found = (
        f"an atom has about {count.max():,.0f} neighbours within {REACH:g} Å, images included; solids have 20 to 160"
    )
    means = "these cells are far too small; time and memory grow with the number of neighbours"
    yield from sample.marked(count > CROWDED, "problem", found, means, "Look at the unit of the cell, or remove them")


def single_atoms(sample: Sample) -> Iterator[Finding]:
    """Isolated atoms, whose energies models have exactly."""
    alone = sample.structures.isolated & sample.structures.has["energy"]
    if not alone.all():
        advice = "Where each element has one, a model has their energies exactly (not with data.references=mean)"
        yield from sample.marked(alone, "note", f"{counted(alone.sum(), 'frame')} of an isolated atom", "", advice)


def fixed(sample: Sample) -> Iterator[Finding]:
    """Fixed atoms, which count in no loss."""
    held = sample.structures.fixed
    whole = sample.structures.all_atoms(held)
    found, means = f"all atoms are fixed in {counted(whole.sum(), 'frame')}", "no force of theirs counts in training"
    yield from sample.marked(whole, "problem", found, means, "Remove the constraints, or these frames")
    if held.any():
        means = "their forces count in no loss and no metric; DeNS leaves them in place"
        yield sample.finding("note", f"{held.mean():.0%} of the atoms are fixed", means)


def one_trajectory(sample: Sample) -> Iterator[Finding]:
    """Neighbouring structures that are more alike than others."""
    structures, count = sample.structures, len(sample.structures)
    if len(sample.groups) > 1 or structures.pbc.any() or count < 20:
        return
    positions = structures.positions.reshape(count, -1)
    steps = positions[1:] - positions[:-1]
    jumps = positions - np.roll(positions, count // 2, axis=0)
    if (steps**2).mean() < 0.25 * (jumps**2).mean():
        found = "neighbouring frames are alike (one trajectory?)"
        yield sample.finding("note", found, "a random split looks too good", "Stricter: data.split.mode=blocks")
