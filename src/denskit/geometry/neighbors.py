"""Neighbour lists: which pairs of atoms lie within the cutoff.

Convention (``batch.py``): ``index[0]`` is the source j, ``index[1]`` the target i, and the edge's vector is
r_j + shift @ cell - r_i.  Each pair appears in both directions; a pair at exactly the cutoff is left out.  Both
builders measure distances in float64 from the batch's positions, so they agree on who is inside.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
import vesin

from denskit.batch import Batch, Edges
from denskit.geometry.lattice import LARGEST, SAME_PLACE, Box, box_of, check_numbers

Array = TypeVar("Array", np.ndarray, torch.Tensor)

TIE = 0.01  # Å^2: OC20's tolerance for neighbours as far as the last one kept
# Å^2: squared distances in one step are ties, which rounding must not order.  Above the rounding of float32 positions;
# no round number, so that shells of perfect crystals, with few decimals, do not lie between two steps
GRAIN = 1e-3 * math.pi / 3
SPARSE = 0.015  # atoms per Å^3: a fourth of a solid's: the density around an atom on its surface
GROWTH = 1.4  # of the search radius, where it did not hold enough neighbours
MOST_EDGES = 2e7  # of one structure: 3 GB while they are sorted
MOST_STEPS = 1e9  # of vesin from cell to cell: about five seconds
FEW_ATOMS = 64  # of a molecule: looking at all pairs is two to six times as fast as a search
FEW_CUTOFFS = 50  # from the origin: farther out the box of the search is checked
MOST_CELLS = 1e5  # of vesin's list, however large the box


@dataclass(frozen=True)
class _Edges:
    """Edges of one system (numpy), with local atom indices."""

    source: np.ndarray  # [E]
    target: np.ndarray  # [E]
    shift: np.ndarray  # [E, 3]
    distance: np.ndarray  # [E] Å

    def take(self, rows: np.ndarray) -> _Edges:
        return _Edges(self.source[rows], self.target[rows], self.shift[rows], self.distance[rows])


def build_neighbors(batch: Batch, cutoff: float, *, max_neighbors: int | None = None, strict: bool = True) -> Batch:
    """The batch with the edges of every system, found on the CPU by vesin's cell list (O(N), about 0.3 µs per edge).

    Works for molecules (zero cell), for any mix of periodic directions, for cells smaller than the cutoff (an atom then
    neighbours its own images), for skewed cells and for atoms outside the cell.  Edges are sorted by target, then
    source, then shift; there may be none at all (E = 0).  No edge is padding: ``mask`` is None.  The result is on the
    device of the batch.

    cutoff: Å.  max_neighbors: largest number of sources per target (an edge may then lack its reverse).  ``strict``
    keeps exactly the nearest ones, with ties (:func:`ranked`) resolved by source and shift.  Otherwise all sources are
    kept whose squared distance exceeds that of the (max_neighbors + 1)-th by at most 0.01 Å^2, as in OC22's models, so
    that a shell of equal distances is not split.  The search starts with a small radius and grows where it found too
    few: 12 Å with 20 neighbours costs as much as 7 Å.

    Raises ValueError with the system's place in the batch for positions or cells that are not finite, atoms that have
    flown apart, a flat or huge periodic cell, two atoms at one place (or an atom on its own image), and more than about
    ``MOST_EDGES`` edges of one system, estimated before the search.
    """
    if not 0 < cutoff < math.inf:
        raise ValueError(f"the cutoff is {cutoff} Å; give a finite number above 0")
    if max_neighbors is not None and max_neighbors < 1:
        raise ValueError(f"max_neighbors is {max_neighbors}: give at least 1, or None for no limit.")
    positions = batch.positions.detach().to("cpu", torch.float64).numpy()
    cells = batch.cell.detach().to("cpu", torch.float64).numpy()
    pbc = batch.pbc.cpu().numpy()
    ends = batch.n_atoms.cumsum(0).tolist()
    rule = _Rule(cutoff, max_neighbors, strict)

    index_parts, shift_parts = [np.zeros((2, 0), dtype=np.int64)], [np.zeros((0, 3), dtype=np.int64)]
    for system, (first, end) in enumerate(itertools.pairwise([0, *ends])):
        name = f"System {system} of the batch"
        edges = _system_edges(rule, positions[first:end], cells[system], pbc[system], name)
        index_parts.append(first + np.stack([edges.source, edges.target]))
        shift_parts.append(edges.shift)
    index = torch.from_numpy(np.concatenate(index_parts, axis=1))
    found = Edges(index=index, shift=torch.from_numpy(np.concatenate(shift_parts)))
    return replace(batch, edges=found.to(batch.positions.device))


def _system_edges(rule: _Rule, positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, name: str) -> _Edges:
    """All edges of one system in their final order."""
    check_numbers(positions, cell, name)
    if not pbc.any() and len(positions) <= FEW_ATOMS and np.abs(positions).max(initial=0) < FEW_CUTOFFS * rule.cutoff:
        edges = _among(positions, rule.cutoff)
        _check_places(edges, name)
        kept = rule.nearest(edges, len(positions), rule.cutoff)
        assert kept is not None, "no longer edges are wanted"
        return kept
    box = box_of(positions, cell, pbc, rule.cutoff, name)
    radius = rule.first_radius(least=float(np.linalg.norm(box.rows, axis=1).max() / LARGEST))  # that vesin can search
    while True:
        edges = _within(radius, box, name)
        _check_places(edges, name)
        kept = rule.nearest(edges, len(positions), radius)
        if kept is not None:
            return kept
        radius = min(GROWTH * radius, rule.cutoff)


def _check_places(edges: _Edges, name: str) -> None:
    too_near = np.flatnonzero(edges.distance < SAME_PLACE)
    if len(too_near):
        i, j, d = edges.target[too_near[0]], edges.source[too_near[0]], edges.distance[too_near[0]]
        raise ValueError(
            f"{name}: atoms {i} and {j} are at one place ({d:.1e} Å apart, images included; counted from 0); "
            f"at least {SAME_PLACE} Å is wanted. Remove the double atom or correct the cell."
        )


def _among(positions: np.ndarray, radius: float) -> _Edges:
    """All edges shorter than a radius among a few atoms without a cell, sorted by target and source."""
    vectors = positions[None] - positions[:, None]  # [target, source, 3]
    distance = np.sqrt(np.square(vectors).sum(-1))
    near = distance < radius
    np.fill_diagonal(near, False)
    target, source = near.nonzero()
    return _Edges(source, target, np.zeros((len(target), 3), dtype=np.int64), distance[target, source])


def _within(radius: float, box: Box, name: str) -> _Edges:
    """All edges shorter than a radius, sorted by target, source and shift."""
    _check_cost(radius, box, name)
    finder = vesin.NeighborList(cutoff=radius, full_list=True, n_threads=1)  # loader workers must not multiply threads
    # vesin's vectors are r_second + shift @ box - r_first: its first atom is our target.
    target, source, shift, distance = finder.compute(
        points=box.positions, box=box.rows, periodic=True, quantities="ijSd"
    )
    target, source = target.astype(np.int64), source.astype(np.int64)
    edges = _Edges(source, target, box.shift_in_cell(source, target, shift.astype(np.int64)), distance)
    return edges.take(_order(edges, len(box.positions)))


def _check_cost(radius: float, box: Box, name: str) -> None:
    """ValueError for a search that would take minutes or all memory: too many edges or images to visit."""
    n, heights = len(box.positions), box.heights
    cells = np.maximum(np.floor(heights / radius), 1)
    visited = 2 * np.ceil(radius * cells / heights) + 1  # of the cells along each direction, as vesin does
    steps = min(float(cells.prod()), MOST_CELLS) * visited.prod()
    images = (2 * np.ceil(radius / heights) + 1).prod()
    if n * n * images <= MOST_EDGES and steps <= MOST_STEPS:
        return
    # all atoms of a search cell are neighbours; the surrounding cells are taken to be as dense
    place = np.minimum(box.positions @ np.linalg.inv(box.rows) % 1 * cells, cells - 1).astype(np.int64)
    crowds = np.unique(place, axis=0, return_counts=True)[1].astype(np.float64)
    volume = abs(np.linalg.det(box.rows)) / cells.prod()
    edges = float((crowds**2).sum()) * 4 / 3 * math.pi * radius**3 / volume
    if edges > MOST_EDGES or steps > MOST_STEPS:
        raise ValueError(
            f"{name}: about {edges:.1e} neighbours within {radius:.3g} Å and {steps:.0e} steps to find them; "
            f"{MOST_EDGES:.0e} and {MOST_STEPS:.0e} are the limits. It has {n} atoms, up to "
            f"{crowds.max(initial=0):.0f} of them within about {radius:.3g} Å, in a box whose faces are "
            f"{heights.min():.2g} to {heights.max():.3g} Å apart. Check positions, cell, their unit and the cutoff."
        )


def _order(edges: _Edges, n_atoms: int) -> np.ndarray:
    """Permutation that sorts edges by target, source and shift, by one sort of a combined key."""
    if not len(edges.target):
        return np.zeros(0, dtype=np.int64)
    columns = [edges.target, edges.source, *edges.shift.T.copy()]  # rows are reduced far faster than columns
    spans = [n_atoms, n_atoms]
    for column in columns[2:]:
        column -= column.min()
        spans.append(int(column.max()) + 1)
    if math.prod(spans) >= 2**63:  # atoms millions of cells away from each other
        return np.lexsort(columns[::-1])
    number = columns[0]
    for column, span in zip(columns[1:], spans[1:], strict=True):
        number = number * span + column
    return np.argsort(number)  # no two edges are the same, so any sort is stable


def ranked(squared: Array) -> Array:
    """By what neighbours are ordered: squared distances (Å^2) in whole steps of ``GRAIN``; equal ones are ties."""
    return (squared / GRAIN).round()


@dataclass(frozen=True)
class _Rule:
    """Rule that selects the neighbours of an atom; see :func:`build_neighbors`."""

    cutoff: float
    max_neighbors: int | None
    strict: bool

    def first_radius(self, least: float) -> float:
        """First search radius, Å: its ball holds the wanted neighbours even beside vacuum."""
        if self.max_neighbors is None:
            return self.cutoff
        ball = (3 * (self.max_neighbors + 1) / (4 * math.pi * SPARSE)) ** (1 / 3)
        return min(max(ball, least), self.cutoff)

    def nearest(self, edges: _Edges, n_atoms: int, radius: float) -> _Edges | None:
        """The edges to keep, in order, of those shorter than ``radius``; None where some atom has too few and longer
        edges may belong to them."""
        k = self.max_neighbors
        if k is None:
            return edges
        degree = np.bincount(edges.target, minlength=n_atoms)
        last = k if self.strict else k + 1  # the neighbour whose distance bounds the others
        if radius < self.cutoff and degree.min(initial=last) < last:
            return None
        if degree.max(initial=0) < last:
            return edges
        # one row per atom, padded with infinity; a partition finds the last neighbour without sorting
        exists = np.arange(degree.max()) < degree[:, None]  # [n_atoms, most]; True in the order of the edges
        squared = np.full(exists.shape, np.inf)
        squared[exists] = np.square(edges.distance)
        key = ranked(squared) if self.strict else squared
        bound = np.partition(key, last - 1, axis=1)[:, last - 1, None]  # inf for atoms that have fewer
        if self.strict:
            if radius < self.cutoff and bound.max() >= ranked(np.square(radius)):
                return None
            equal = key == bound
            room = k - (key < bound).sum(axis=1, keepdims=True)
            keep = (key < bound) | (equal & (equal.cumsum(axis=1) <= room))
        else:
            bound = bound + TIE
            if radius < self.cutoff and bound.max() >= radius**2:
                return None
            keep = squared <= bound
        return edges.take(np.flatnonzero(keep[exists]))
