"""Whether the energies of one composition fall into two groups that the geometries do not explain."""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree

from denskit.data.base import spaced
from denskit.data.inspection.pairs import fingerprints, lattices
from denskit.data.structure_arrays import StructureArrays

FEWEST = 6  # frames of one composition, to speak of groups
GAP = 0.1  # eV an atom, between groups, and
WIDTHS = 10.0  # deviations of the wider one
CROSSING = 0.2  # of the smaller group's frames lie among the larger's, where geometry does not divide them:
ALIKE = 3.0  # times as far as those are from each other
MOST = 2000  # frames of each that are looked at


def energy_split(frames: StructureArrays, group: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The smaller and the larger part of a ``group`` [G] of frames of one composition; None where they are one."""
    group = group[frames.has["energy"][group]]
    if len(group) < FEWEST:
        return None
    values = frames.energy[group] / frames.sizes[group[0]]
    order = np.argsort(values)
    gaps = np.diff(values[order])
    cut = int(gaps.argmax()) + 1
    low, high = order[:cut], order[cut:]
    if gaps[cut - 1] < max(GAP, WIDTHS * max(values[low].std(), values[high].std())):
        return None
    few, many = (low, high) if len(low) < len(high) else (high, low)
    return (group[few], group[many]) if _crossing(frames, group[few], group[many]) >= CROSSING else None


def _crossing(frames: StructureArrays, few: np.ndarray, many: np.ndarray) -> float:
    """Share of the frames ``few`` that have one of ``many`` nearest, as near as these are to each other."""
    few, many = (part[spaced(len(part), MOST)] for part in (few, many))
    group = np.concatenate([few, many])
    pbc = frames.pbc[group[0]]
    atoms = frames.starts[group][:, None] + np.arange(frames.sizes[group[0]])
    prints = fingerprints(frames.positions[atoms], lattices(frames.cell[group], pbc), pbc)
    distances, near = cKDTree(prints).query(prints, k=2)
    itself = near[:, 0] == np.arange(len(group))  # a twin may come first
    nearest, distance = np.where(itself, near[:, 1], near[:, 0]), np.where(itself, distances[:, 1], distances[:, 0])
    alike = distance[: len(few)] <= ALIKE * np.median(distance[len(few) :])
    return float(((nearest[: len(few)] >= len(few)) & alike).mean())
