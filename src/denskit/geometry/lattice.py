"""The box of the neighbour search: a short basis of the lattice, and checks of the structure.

A cell may describe its lattice by long vectors at sharp angles.  The same lattice has a short, nearly orthogonal basis,
in which the cost of the search depends on the neighbours alone.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

SAME_PLACE = 1e-4  # Å: nearer atoms are an error in the data
LARGEST = 200.0  # cutoffs: extent or lattice vector up to which vesin's cell list is safe and fast
OUTERMOST = 1e8  # Å: farther from the origin, float64 no longer resolves distances
ROUNDING = 1e-8  # Å: precision of sums of lattice vectors
SKEWED = 0.5  # volume over product of lengths below which a shorter basis is searched
FAR_OUT = 1e6  # boxes between an atom and the box at the origin, from which vesin's integers may overflow


@dataclass(frozen=True)
class Box:
    """Atoms in a box periodic in all directions, with the same neighbours as in their structure."""

    rows: np.ndarray  # [3, 3] Å
    heights: np.ndarray  # [3] Å, distances between opposite faces
    positions: np.ndarray  # [n, 3] Å
    change: np.ndarray | None  # [3, 3] int64: periodic rows = change @ cell; None: they are the cell's
    moved: np.ndarray | None  # [n, 3] int64: the atoms were moved by -moved @ rows; None: none was

    def shift_in_cell(self, source: np.ndarray, target: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Shifts [E, 3] of edges found in the box, in lattice vectors of the cell."""
        if self.moved is not None:
            shift = shift - self.moved[source] + self.moved[target]
        return shift if self.change is None else shift @ self.change


def box_of(positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float, name: str) -> Box:
    """The box of a structure.

    Directions without periodicity get a row orthogonal to all others, too long for two images to be neighbours; the
    cell's own vector is ignored.  All three directions are periodic, because vesin's search along open directions takes
    minutes for wide wires and divides by zero for wider ones.

    positions: [n, 3] Å, finite.  cell: [3, 3] Å, finite.  pbc: [3].  cutoff: Å.  name: the start of messages.
    Raises ValueError for no volume along periodic directions, and for an extent beyond ``LARGEST`` cutoffs.
    """
    rows, change = periodic_rows(cell, pbc, name)
    across = np.linalg.svd(rows)[2][len(rows) :]  # orthonormal, at right angles to the rows
    extent = np.ptp(positions @ across.T, axis=0) if len(positions) else np.zeros(len(across))
    box = np.empty((3, 3))
    box[pbc], box[~pbc] = rows, (extent + 2 * cutoff)[:, None] * across
    largest = np.linalg.norm(box, axis=1).max()
    if largest > LARGEST * cutoff:
        raise ValueError(
            f"{name}: its atoms have flown apart, or its cell is huge: {largest:.4g} Å where {LARGEST * cutoff:.4g} Å "
            f"({LARGEST:.0f} times the radius of the search) are the limit. Check positions, cell and their unit; a "
            "molecule alone needs no periodicity (pbc=False)."
        )
    inverse = np.linalg.inv(box)
    scaled, moved = positions @ inverse, None
    if np.abs(scaled).max(initial=0) > FAR_OUT:
        moved = np.floor(scaled).astype(np.int64)
        positions = positions - moved @ box
    whole = None
    if change is not None:
        whole = np.eye(3, dtype=np.int64)
        whole[np.ix_(pbc, pbc)] = change
    return Box(box, 1 / np.linalg.norm(inverse, axis=0), positions, whole, moved)


def periodic_rows(cell: np.ndarray, pbc: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """The periodic lattice vectors, short ones, and their change as :func:`short_basis` gives it.

    Raises ValueError for no volume along periodic directions.
    """
    rows, change = short_basis(cell[pbc])
    repeats = np.linalg.norm(rows, axis=1).min(initial=np.inf)
    if not repeats >= SAME_PLACE:
        raise ValueError(
            f"{name}: periodic along {np.flatnonzero(pbc).tolist()}, but its cell {cell.tolist()} (Å) has no volume "
            f"there, or none beyond rounding: an atom and its image are {repeats:.1e} Å apart, where at least "
            f"{SAME_PLACE} Å is wanted. Give short, independent lattice vectors for these directions, or switch their "
            f"periodicity off."
        )
    return rows, change


def check_numbers(positions: np.ndarray, cell: np.ndarray, name: str) -> None:
    """ValueError for positions or a cell that are not finite or far beyond any structure."""
    wrong = np.flatnonzero(~(np.abs(positions) < OUTERMOST).all(axis=1))
    if len(wrong):
        raise ValueError(
            f"{name}: atom {wrong[0]} is at {positions[wrong[0]].tolist()} Å; finite positions within "
            f"{OUTERMOST:.0e} Å of the origin are wanted. Atoms are counted from 0."
        )
    if not (np.abs(cell) < OUTERMOST).all():
        raise ValueError(
            f"{name}: its cell is {cell.tolist()} Å; finite lattice vectors shorter than {OUTERMOST:.0e} Å are wanted, "
            f"zeros where there is no cell."
        )


def nearest_image(difference: np.ndarray, cell: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """Differences of positions [n, 3] Å modulo lattice vectors, each component along the cell within one half.

    For differences that are short against the cell (a relaxation) this is the shortest image.
    """
    return wrapped(difference, lattices(cell[None], pbc)[0], pbc)


def wrapped(vectors: np.ndarray, lattice: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """Vectors [..., n, 3] to the nearest image; exact for vectors short against the lattice [..., 3, 3]."""
    if not pbc.any():
        return vectors
    scaled = vectors @ np.linalg.inv(lattice)
    scaled[..., pbc] -= np.round(scaled[..., pbc])
    return scaled @ lattice


def lattices(cells: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """Cells [G, 3, 3] whose rows along open directions are unit vectors at right angles to the others."""
    if pbc.all():
        return cells
    rows = np.where(pbc[:, None], cells, 0)
    rows[:, ~pbc] = np.linalg.svd(rows)[2][:, pbc.sum() :]
    return rows


def short_basis(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """A short basis [k, 3] of the lattice of ``rows`` [k, 3] and its integer coefficients [k, k]; None: basis = rows.

    The basis of skewed rows is Minkowski reduced: no vector can be shortened by those before it (I. Semaev, A
    3-dimensional lattice reduction algorithm, CaLC 2001).  For rows that are dependent within rounding the first vector
    is zero.
    """
    if np.prod(np.linalg.svd(rows, compute_uv=False)) >= SKEWED * np.prod(np.linalg.norm(rows, axis=1)):
        return rows, None
    basis, change, found = rows, np.eye(len(rows)), True  # integers below 2^53 are exact
    while found:
        order = np.argsort(np.linalg.norm(basis, axis=1), kind="stable")
        basis, change = basis[order], change[order]
        found = False
        if np.linalg.norm(basis[0]) < SAME_PLACE:
            break
        for i in range(1, len(rows)):
            shorter = change[i] - _nearest(basis[:i], basis[i]) @ change[:i]
            if (np.abs(shorter) @ np.abs(rows)).max() * np.finfo(float).eps > ROUNDING:
                return np.zeros_like(rows), None
            if np.linalg.norm(shorter @ rows) < (1 - ROUNDING) * np.linalg.norm(basis[i]):
                change[i], found = shorter, True
                basis = change @ rows
    return basis, change.astype(np.int64)


def _nearest(basis: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Integer coefficients [i] of the lattice point of a reduced ``basis`` [i, 3], i < 3, nearest to a vector [3]."""
    middle = np.round(np.linalg.lstsq(basis.T, vector, rcond=None)[0])
    around = middle + np.array(list(itertools.product((0, -1, 1), repeat=len(basis))))
    nearest: np.ndarray = around[np.linalg.norm(around @ basis - vector, axis=1).argmin()]
    return nearest
