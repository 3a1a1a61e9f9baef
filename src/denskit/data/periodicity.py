"""Crystals, and structures that are none: slabs and molecules, also in periodic boxes with vacuum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from denskit.batch import System

EMPTY = 1e-6  # Å^3: a smaller cell is singular but for rounding
VACUUM = 6.5  # Å between planes of atoms; layered crystals stay below


def layer_gap(positions: np.ndarray, cell: np.ndarray) -> float:
    """The largest distance (Å) between neighbouring planes of atoms parallel to two cell vectors.

    positions: [n, 3] Å.  cell: [3, 3] Å, periodic in three directions, not singular.
    """
    inverse = np.linalg.inv(cell)
    heights = np.sort((positions @ inverse) % 1.0, axis=0)
    gaps = np.diff(heights, axis=0, append=heights[:1] + 1.0).max(axis=0)
    return float((gaps / np.linalg.norm(inverse, axis=0)).max())


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


def not_a_crystal(system: System) -> str:
    """ "periodic along xy only" or "not periodic"; empty where all three directions are periodic."""
    if system.pbc.all():
        return ""
    axes = "".join(axis for axis, repeats in zip("xyz", system.pbc, strict=True) if repeats)
    return f"periodic along {axes} only" if axes else "not periodic"
