"""Cells so small that an atom sees thousands of atoms, most of them images of the same few."""

from __future__ import annotations

import math

import ase
import numpy as np

from denskit.batch import System
from denskit.data.periodicity import EMPTY

REACH = 6.0  # Å: about what models see
CROWDED = 1000.0  # neighbours within it; diamond, the densest common solid, has 160


def neighbors_expected(sizes: np.ndarray, cell: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """Neighbours of an atom within ``REACH`` [B], images included, from the density; 0 unless periodic in 3D.

    sizes: [B].  cell: [B, 3, 3] Å.  pbc: [B, 3].
    """
    volume = np.where(pbc.all(axis=1), np.abs(np.linalg.det(cell)), np.inf)
    return np.asarray(4 / 3 * math.pi * REACH**3 * sizes / np.maximum(volume, 1e-9))


def crowding(structure: System | ase.Atoms, cutoff: float = REACH) -> str:
    """The cost of a crowded structure in words, for a user who is about to pay it; empty for others.

    ``cutoff``: Å, radius in which the model looks for neighbours.  A cell without volume is not crowded but refused,
    when its neighbours are searched.
    """
    cell, pbc = np.asarray(structure.cell), np.asarray(structure.pbc)
    count = float(neighbors_expected(np.array([len(structure)]), cell[None], pbc[None])[0])
    if count < CROWDED or abs(np.linalg.det(cell)) < EMPTY:
        return ""
    seen = (cutoff / REACH) ** 3
    return (
        f"an atom has about {count * seen:,.0f} neighbours within {cutoff:g} Å, images included; solids have "
        f"{20 * seen:.0f} to {160 * seen:.0f}. Time and memory grow with this number. Is the cell in Å?"
    )
