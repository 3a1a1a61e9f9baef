"""Crystals, and structures that are none: slabs and molecules, also in periodic boxes with vacuum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from denskit.batch import System
from denskit.geometry.lattice import lattices

EMPTY = 1e-6  # Å^3: a smaller cell is singular but for rounding
GONE = 20.0  # Å between parts of a structure along an open direction: farther than any model looks
VACUUM = 6.5  # Å between planes of atoms; layered crystals stay below
MAY_CLOSE = "it has vacuum, like a slab or a molecule in a box, and its whole cell changes: the vacuum may close"


def open_gaps(positions: np.ndarray, cells: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """The largest gap (Å) between the atoms of each structure [G] along its open directions, 0 without any.

    positions: [G, n, 3] Å.  cells: [G, 3, 3] Å.  pbc: [3], of all of them.
    """
    across = lattices(cells, pbc)[:, ~pbc]  # unit vectors
    heights = np.sort(positions @ across.transpose(0, 2, 1), axis=1)
    return np.asarray(np.diff(heights, axis=1).max(axis=(1, 2), initial=0.0))


def layer_gap(positions: np.ndarray, cell: np.ndarray) -> float:
    """The largest distance (Å) between neighbouring planes of atoms parallel to two cell vectors.

    positions: [n, 3] Å.  cell: [3, 3] Å, periodic in three directions, not singular.
    """
    return float(_layer_gaps(positions, cell).max())


def _layer_gaps(positions: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """The same for each cell vector [3] that the planes are not parallel to."""
    inverse = np.linalg.inv(cell)
    heights = np.sort((positions @ inverse) % 1.0, axis=0)
    gaps = np.diff(heights, axis=0, append=heights[:1] + 1.0).max(axis=0)
    return np.asarray(gaps / np.linalg.norm(inverse, axis=0))


def is_boxed(system: System, reach: float) -> bool:
    """Whether a structure is periodic, but none of its atoms comes within ``reach`` (Å) of an image: a molecule in a
    box; not with fixed atoms, and not for a cell without volume."""
    lattice = lattices(system.cell[None], system.pbc)[0]
    if not system.pbc.any() or system.fixed.any() or abs(np.linalg.det(lattice)) < EMPTY:
        return False
    return bool(_layer_gaps(system.positions, lattice)[system.pbc].min() > reach)


def has_vacuum(system: System) -> bool:
    """Whether a structure periodic in three directions has vacuum like a slab's; not for a cell without volume."""
    crystal = bool(system.pbc.all()) and abs(np.linalg.det(system.cell)) > EMPTY
    return crystal and layer_gap(system.positions, system.cell) > VACUUM


def is_crystal(system: System) -> bool:
    """Whether it is periodic in three directions, without vacuum and fixed or tagged atoms, which slabs have."""
    slab = system.tags.any() or system.fixed.any() or has_vacuum(system)
    return bool(system.pbc.all()) and not slab


def mostly_crystals(systems: Sequence[System]) -> bool:
    """Whether more than half of them are crystals."""
    return 2 * sum(map(is_crystal, systems)) > len(systems)


def not_a_crystal(pbc: Sequence[bool] | np.ndarray) -> str:
    """ "periodic along xy only" or "not periodic"; empty where all three directions are periodic."""
    axes = "".join(axis for axis, repeats in zip("xyz", pbc, strict=True) if repeats)
    return {"xyz": "", "": "not periodic"}.get(axes, f"periodic along {axes} only")
