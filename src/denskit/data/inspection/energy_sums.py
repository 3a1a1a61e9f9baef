"""Energies beside a sum over the elements: a linear fit that outliers do not pull."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST = 100_000  # structures in a fit: enough for any number of elements


def fewest(elements: int) -> int:
    """The structures that a fit of so many elements wants; with fewer it follows the outliers."""
    return 3 * elements + 6


@dataclass(frozen=True)
class EnergySum:
    """An energy an atom as the sum of shares of the elements, times one energy of each."""

    elements: np.ndarray  # [E] atomic numbers, rising
    energies: np.ndarray  # [E] eV
    deviation: float  # eV an atom, robust: of a normal distribution

    def residual(self, atomic_numbers: np.ndarray, energy: float) -> float:
        """The energy an atom (eV) above the sum; NaN where an element was not in the fit."""
        place = np.searchsorted(self.elements, atomic_numbers).clip(max=len(self.elements) - 1)
        if (self.elements[place] != atomic_numbers).any():
            return float("nan")
        return energy / len(atomic_numbers) - float(self.energies[place].mean())


def fit_energies(atomic_numbers: Sequence[np.ndarray], energy: Sequence[float] | np.ndarray) -> EnergySum:
    """The fit by Huber's weights to structures with these atoms and energies (eV)."""
    sizes = np.array([len(numbers) for numbers in atomic_numbers])
    elements, places = np.unique(np.concatenate(atomic_numbers), return_inverse=True)
    share = np.zeros((len(sizes), len(elements)))
    np.add.at(share, (np.repeat(np.arange(len(sizes)), sizes), places), 1)
    share /= sizes[:, None]
    values = np.asarray(energy, dtype=float) / sizes
    left, energies, deviation = values - np.median(values), np.zeros(len(elements)), 0.0
    for _ in range(20):
        deviation = 1.4826 * float(np.median(np.abs(left)))
        weights = np.sqrt(1 / np.maximum(1, np.abs(left) / (1.5 * deviation + 1e-9)))
        energies = np.linalg.lstsq(weights[:, None] * share, weights * values, rcond=None)[0]
        left = values - share @ energies
    return EnergySum(elements, energies, deviation)
