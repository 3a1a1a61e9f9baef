"""Energies of one composition that fall into two groups which the geometries do not explain."""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree

from denskit.data.base import spaced
from denskit.data.crowding import REACH
from denskit.data.inspection.nearest import SQUEEZED, nearest_distances
from denskit.data.inspection.pairs import fingerprints
from denskit.data.structure_arrays import StructureArrays
from denskit.geometry.lattice import lattices

FEWEST = 6  # structures of one composition that can form groups
GAP = 0.1  # eV an atom between groups, and
BEYOND = 10.0  # eV an atom between groups: more than any cohesion, so no geometry explains it
WIDTHS = 10.0  # standard deviations of the wider group
CROSSING = 0.2  # share of the smaller group that lies among the larger, where geometry does not divide them:
ALIKE = 3.0  # times the distance within the larger group
STEEPER = 2.0  # times the largest force of the lower energies: a squeezed structure has both, forces and energy
MOST = 2000  # structures of each group that are compared
LOOKED_AT = 20  # structures of the group of higher energies


def energy_split(structures: StructureArrays, group: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The smaller and the larger part of a ``group`` [G] of structures of one composition; None for one group."""
    group = group[structures.has["energy"][group]]
    if len(group) < FEWEST:
        return None
    if structures.sizes[group[0]] == 2 and not structures.pbc[group[0]].any():  # a curve: of one distance
        return None
    values = structures.energy[group] / structures.sizes[group[0]]
    order = np.argsort(values)
    gaps = np.diff(values[order])
    cut = int(gaps.argmax()) + 1
    low, high = order[:cut], order[cut:]
    if gaps[cut - 1] < max(GAP, WIDTHS * max(values[low].std(), values[high].std())):
        return None
    few, many = (low, high) if len(low) < len(high) else (high, low)
    few, many = group[few], group[many]
    if gaps[cut - 1] > BEYOND and not _squeezed(structures, group[high]):
        return few, many
    steeper = _steeper(structures, group[high], group[low])
    return (few, many) if not steeper and _crossing(structures, few, many) >= CROSSING else None


def _steeper(structures: StructureArrays, high: np.ndarray, low: np.ndarray) -> bool:
    """Whether all of ``high`` have by far larger forces than all of ``low``, which their higher energies agree with."""
    if not structures.has["forces"][np.concatenate([high, low])].all():
        return False
    largest, others = (np.abs(structures.forces[structures.atom_rows(part)]).max(axis=(1, 2)) for part in (high, low))
    return bool(largest.min() > STEEPER * others.max())


def _squeezed(structures: StructureArrays, group: np.ndarray) -> bool:
    """Whether some of these structures have atoms nearer than half of a bond: such have any energy."""
    try:
        return any(
            bool((nearest_distances(structures[int(place)], REACH)[1] < SQUEEZED).any())
            for place in group[spaced(len(group), LOOKED_AT)]
        )
    except ValueError:  # a cell that is no crystal's
        return True


def _crossing(structures: StructureArrays, few: np.ndarray, many: np.ndarray) -> float:
    """Share of ``few`` whose nearest structure is one of ``many``, as near as these are to each other."""
    few, many = few[spaced(len(few), MOST)], many[spaced(len(many), MOST)]
    group = np.concatenate([few, many])
    pbc = structures.pbc[group[0]]
    positions = structures.positions[structures.atom_rows(group)]
    prints = fingerprints(positions, lattices(structures.cell[group], pbc), pbc)
    distances, near = cKDTree(prints).query(prints, k=2)
    itself = near[:, 0] == np.arange(len(group))  # a twin may come first
    nearest, distance = np.where(itself, near[:, 1], near[:, 0]), np.where(itself, distances[:, 1], distances[:, 0])
    alike = distance[: len(few)] <= ALIKE * np.median(distance[len(few) :])
    return float(((nearest[: len(few)] >= len(few)) & alike).mean())
