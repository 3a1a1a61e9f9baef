"""Structures: atoms too near or far away, twins, too few frames."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from denskit.data.inspection.finding import Finding
from denskit.data.inspection.nearest import REACH
from denskit.data.inspection.sample import Sample
from denskit.data.structure_arrays import close_pair

OVERLAP, SQUEEZED = 0.3, 0.5  # of the sum of covalent radii; structures at 2000 K stay above 0.56
SHORTEST = 0.6  # Å: shorter than any bond (H2 is 0.74)
GONE = 20.0  # Å between parts of a structure
TWIN_ENERGY, TWIN_FORCE = 2e-3, 0.1  # eV an atom, eV/Å
STRETCHED = 1.6  # times the sum of covalent radii, in half of the frames: no bonds are that long


def unsearchable(sample: Sample) -> Iterator[Finding]:
    """Structures in which no neighbours can be searched."""
    for place, reason in sample.nearest.refused.items():
        if sample.gaps[place] <= GONE:
            yield sample.finding("problem", reason, of=np.array([place]))


def too_near(sample: Sample) -> Iterator[Finding]:
    """Atoms nearer than any bond, or at one place: in all frames by distance, in some by their elements, too."""
    nearest, frames = sample.nearest, sample.frames
    near = (nearest.distance < SHORTEST) | (nearest.ratio < OVERLAP)
    rest = sorted(set(range(len(frames))) - set(nearest.frame.tolist()) - set(nearest.refused))
    geometry = ((frames[place].positions, frames.cell[place], frames.pbc[place]) for place in rest)
    also = [place for place, given in zip(rest, geometry, strict=True) if close_pair(*given, within=SHORTEST)]
    wrong = np.unique(np.concatenate([nearest.frame[near], np.array(also, dtype=np.int64)]))
    if len(wrong):
        apart = f"only {nearest.distance[near].min():.3g}" if near.any() else f"less than {SHORTEST:g}"
        means = "atoms on top of each other, nearer than any bond"
        yield sample.finding("problem", f"atoms {apart} Å apart", means, "Remove these frames", of=wrong)
    squeezed = ~near & (nearest.ratio < SQUEEZED)
    if squeezed.any():
        found = f"atoms {nearest.distance[squeezed].min():.3g} Å apart, less than half of a bond"
        yield sample.finding("note", found, "structures far from equilibrium", of=np.unique(nearest.frame[squeezed]))


def far_away(sample: Sample) -> Iterator[Finding]:
    """Parts of a structure that have flown away along open directions; atoms without neighbours."""
    frames, gaps = sample.frames, sample.gaps
    if (gaps > GONE).any():
        found = f"parts of structures are up to {gaps.max():.4g} Å apart"
        means = "atoms have flown away, as in an exploded simulation"
        yield sample.finding("problem", found, means, "Remove these frames", of=gaps > GONE)
    nearest = sample.nearest
    alone = np.isinf(nearest.distance) & (frames.sizes[nearest.frame] > 1) & (gaps[nearest.frame] <= GONE)
    if alone.any():
        found, means = f"{alone.sum()} atoms have no other within {REACH:g} Å", "to most models they are free atoms"
        yield sample.finding("note", found, means, of=np.unique(nearest.frame[alone]))


def unit_of_length(sample: Sample) -> Iterator[Finding]:
    """Distances as long as those in Bohr."""
    nearest = sample.nearest
    numbers = sample.frames.atomic_numbers[sample.frames.starts[nearest.frame] + nearest.atom]
    told = np.isfinite(nearest.ratio) & ~np.isin(numbers, (2, 10, 18, 36, 54, 86))  # noble gases have no bonds
    if told.sum() >= 2 and (ratio := float(np.median(nearest.ratio[told]))) > STRETCHED:
        yield sample.finding(
            "problem",
            f"half of the atoms are more than {ratio:.2f} bond lengths from the next one",
            "positions are in Bohr, not in Å, or scaled otherwise",
            "Multiply positions and cells of the file by 0.5291772",
        )


def twins(sample: Sample) -> Iterator[Finding]:
    """Geometries that occur twice, to 1e-6 Å."""
    frames = sample.frames
    first: dict[bytes, int] = {}
    again, different = [], []
    for place, (begin, end) in enumerate(pairwise(frames.starts)):
        rounded = np.round(np.concatenate([frames.positions[begin:end], frames.cell[place]]), 6) + 0.0  # no -0.0
        earlier = first.setdefault(frames.atomic_numbers[begin:end].tobytes() + rounded.tobytes(), place)
        if earlier != place:
            again.append(place)
            if _differ(sample, earlier, place):
                different.append(place)
    if different:
        yield sample.finding(
            "problem",
            "the geometry of an earlier frame with other labels",
            "two methods, or calculations that did not converge",
            "Remove one of each",
            of=np.array(different),
        )
    if again:
        yield sample.finding(
            "note",
            "the geometry of an earlier frame again",
            "a random split may put twins on both sides",
            "Remove them, or divide by data.split.mode=blocks or data.group_key=KEY",
            of=np.array(again),
        )


def _differ(sample: Sample, one: int, other: int) -> bool:
    """Whether two frames have labels that differ by more than calculations do that end at their first iteration."""
    first, second = sample.frames[one], sample.frames[other]
    both = first.energy is not None and second.energy is not None
    if both and abs(first.energy - second.energy) > TWIN_ENERGY * len(first):  # type: ignore[operator]
        return True
    return (
        first.forces is not None
        and second.forces is not None
        and bool(np.abs(first.forces - second.forces).max() > TWIN_FORCE)
    )


def few(sample: Sample) -> Iterator[Finding]:
    """Too few labelled frames to train on."""
    labelled = sample.frames.has["energy"] | sample.frames.has["forces"]
    if sample.total < 3 and labelled.any():
        means = "too few to train on: training, validation and test want one each"
        yield sample.finding("problem", f"only {sample.total} frame{'s' * (sample.total > 1)} in the file", means)


def single_atoms(sample: Sample) -> Iterator[Finding]:
    """Isolated atoms, whose energies are references."""
    alone = (sample.frames.sizes == 1) & ~sample.frames.pbc.any(axis=1)
    if alone.any() and not alone.all():
        advice = "To take them as the references of the elements say data.references=isolated"
        yield sample.finding("note", f"{alone.sum()} frames are single atoms", "", advice, of=alone)


def fixed(sample: Sample) -> Iterator[Finding]:
    """Fixed atoms, which count in no loss."""
    held = sample.frames.fixed
    if not held.any():
        return
    all_held = np.logical_and.reduceat(held, sample.frames.starts[:-1])
    if all_held.any():
        found = f"all atoms are fixed in {all_held.sum()} frames"
        means, advice = "no force of theirs counts in training", "Remove the constraints, or these frames"
        yield sample.finding("problem", found, means, advice, of=all_held)
    found = f"{held.mean():.0%} of the atoms are fixed"
    yield sample.finding("note", found, "their forces count in no loss and no metric; DeNS leaves them in place")


def one_trajectory(sample: Sample) -> Iterator[Finding]:
    """Neighbouring frames that are more alike than others."""
    frames = sample.frames
    if len(sample.groups) > 1 or frames.pbc.any() or len(frames) < 20:
        return
    positions = frames.positions.reshape(len(frames), -1)
    steps = positions[1:] - positions[:-1]
    jumps = positions - np.roll(positions, len(frames) // 2, axis=0)
    if (steps**2).mean() < 0.25 * (jumps**2).mean():
        found = "neighbouring frames are alike (one trajectory?)"
        yield sample.finding("note", found, "a random split looks too good", "Stricter: data.split.mode=blocks")
