"""Energies of the most stable mixture of known phases at a composition: the convex hull of formation energies.

The hull at the composition x is the smallest energy of any mixture of phases with that composition,
min sum_p w_p e_p with sum_p w_p x_p = x and w >= 0: a linear program, solved for the elements of x alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from ase.symbols import Symbols
from scipy.optimize import linprog

from denskit.batch import MAX_ATOMIC_NUMBER, System


class ConvexHull:
    """The hull of phases with energies, such as the stable phases of a database.

    ``phases`` have an energy (eV, of the whole structure) of one method; else ValueError.  ``name`` is for messages.
    """

    def __init__(self, phases: Iterable[System], name: str) -> None:
        self.name = name
        best: dict[bytes, tuple[np.ndarray, float]] = {}
        for place, phase in enumerate(phases):
            if phase.energy is None:
                raise ValueError(f"{name}, record {place}: a phase of the hull needs an energy, and it has none")
            shares, energy = composition(phase.atomic_numbers), phase.energy / len(phase)
            key = shares.round(9).tobytes()
            if key not in best or energy < best[key][1]:
                best[key] = shares, energy
        self.shares = np.array([shares for shares, _ in best.values()])  # [P, 119]
        self.energies = np.array([energy for _, energy in best.values()])  # [P] eV/atom
        self._known: dict[bytes, float] = {}

    def energy(self, atomic_numbers: np.ndarray) -> float:
        """The hull (eV/atom) at the composition of a structure [n].  Raises ValueError where no mixture has it."""
        wanted = composition(atomic_numbers)
        key = wanted.tobytes()
        if key not in self._known:
            self._known[key] = self._solved(wanted, atomic_numbers)
        return self._known[key]

    def _solved(self, wanted: np.ndarray, atomic_numbers: np.ndarray) -> float:
        inside = (self.shares[:, wanted == 0] == 0).all(axis=1)
        found = None
        if inside.any():
            mixture = self.shares[inside][:, wanted > 0].T
            found = linprog(self.energies[inside], A_eq=mixture, b_eq=wanted[wanted > 0], bounds=(0, None))
        if found is None or not found.success:
            formula = Symbols(atomic_numbers).get_chemical_formula(empirical=True)
            raise ValueError(
                f"{self.name}: no mixture of its {len(self.energies)} phases is {formula}; add the elements' own "
                "phases, with energies of the same method"
            )
        return float(found.fun)


def composition(atomic_numbers: np.ndarray) -> np.ndarray:
    """Shares of the elements [119] in a structure."""
    return np.bincount(atomic_numbers, minlength=MAX_ATOMIC_NUMBER + 1) / len(atomic_numbers)
