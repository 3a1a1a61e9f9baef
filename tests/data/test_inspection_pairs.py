"""Pairs of atoms by which near structures are found, also of large cells."""

from __future__ import annotations

import tracemalloc

import numpy as np

from denskit.data.inspection.pairs import DISTANCES, fingerprints


def _distances(atoms: int) -> np.ndarray:
    positions = np.random.default_rng(1).random((2, atoms, 3)) * 50
    return fingerprints(positions, np.eye(3)[None].repeat(2, 0) * 50, np.zeros(3, dtype=bool))


def test_cells_of_many_atoms_take_little_memory() -> None:
    tracemalloc.start()
    found = _distances(20_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.shape == (2, DISTANCES) and (found > 0).all()
    assert len(np.unique(found[0])) == DISTANCES
    assert peak < 20e6  # bytes; all pairs take gigabytes


def test_small_structures_are_told_apart_by_all_pairs() -> None:
    assert _distances(4).shape == (2, 6)
    assert _distances(1).shape == (2, 0)
