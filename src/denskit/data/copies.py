"""Structures that are in two files: the same atoms at the same places, whatever the precision of the files."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from denskit.batch import System

TOLERANCE = 1e-4  # Å in each coordinate: far above the rounding of any file, far below a step of any simulation


class Copies:
    """Known structures, to ask whether another one is a copy: the same atoms in one order, positions and cell to
    ``TOLERANCE``.  A structure that is turned, or wrapped otherwise into its cell, is none."""

    def __init__(self, known: Iterable[System]) -> None:
        rows: dict[bytes, list[np.ndarray]] = {}
        for system in known:
            rows.setdefault(system.atomic_numbers.tobytes(), []).append(_row(system))
        self._groups = {atoms: _Group(np.stack(own)) for atoms, own in rows.items()}

    def __contains__(self, system: System) -> bool:
        group = self._groups.get(system.atomic_numbers.tobytes())
        return group is not None and group.holds(_row(system))


class _Group:
    """Structures of the same atoms, sorted by one number, in which copies agree but for the rounding."""

    def __init__(self, rows: np.ndarray) -> None:
        self.weights = np.random.default_rng(0).standard_normal(rows.shape[1])
        self.width = TOLERANCE * np.abs(self.weights).sum()
        numbers = rows @ self.weights
        order = np.argsort(numbers)
        self.rows, self.numbers = rows[order], numbers[order]

    def holds(self, row: np.ndarray) -> bool:
        number = row @ self.weights
        first, end = np.searchsorted(self.numbers, [number - self.width, number + self.width])
        return bool((np.abs(self.rows[first:end] - row) < TOLERANCE).all(1).any())


def _row(system: System) -> np.ndarray:
    """Positions and cell, [3 n + 9] Å."""
    return np.concatenate([system.positions, system.cell]).ravel()
