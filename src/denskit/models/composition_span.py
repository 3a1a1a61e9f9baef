"""Compositions that fitted references are right for: combinations of those that they were fitted to.

The references r give a structure with n_z atoms of each element the energy sum_z n_z r_z.  A fit to compositions that
are fewer, or less varied, than the elements determines this sum only for n in the span of these compositions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ase.data import atomic_numbers, chemical_symbols
from ase.formula import Formula
from scipy.linalg import qr

from denskit.batch import MAX_ATOMIC_NUMBER

Composition = dict[str, int]  # symbol: atoms

_ROUNDING = 1e-9  # of shares of elements: less than one atom in a hundred million
_NEARLY_EQUAL = 1e-6  # shares of compositions that tell no elements apart
_NAMED = 3  # compositions in a message


def independent(counts: np.ndarray, elements: int) -> list[Composition]:
    """Some of the compositions, small ones, that have the span of all; none where this holds all ``elements``.

    ``counts`` [B, 119]: atoms by atomic number.
    """
    counts = counts[counts.any(axis=1)]
    if not len(counts):
        return []
    counts = counts[np.argsort(counts.sum(axis=1), kind="stable")]
    shares, first = np.unique(counts / counts.sum(axis=1, keepdims=True), axis=0, return_index=True)
    triangle, order = qr(shares.T, mode="r", pivoting=True)
    diagonal = np.abs(np.diagonal(triangle))
    rank = int((diagonal > _NEARLY_EQUAL * diagonal[0]).sum())
    return [] if rank >= elements else [_composition(counts[row]) for row in sorted(first[order[:rank]])]


def inside(compositions: Sequence[Composition], counts: np.ndarray) -> np.ndarray:
    """Which structures [B] are combinations of some compositions; ``counts`` [B, 119] as in :func:`independent`."""
    known = counts_of(compositions)
    axes = np.linalg.qr((known / known.sum(axis=1, keepdims=True)).T)[0]  # [119, C]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return np.asarray((np.abs(shares - shares @ axes @ axes.T) < _ROUNDING).all(axis=1))


def counts_of(compositions: Sequence[Mapping[str, int]]) -> np.ndarray:
    """Atoms by atomic number [C, 119] of compositions."""
    counts = np.zeros((len(compositions), MAX_ATOMIC_NUMBER + 1), dtype=np.int64)
    for row, composition in zip(counts, compositions, strict=True):
        for symbol, atoms in composition.items():
            row[atomic_numbers[symbol]] = atoms
    return counts


def checked(compositions: Any) -> list[Composition]:
    """Compositions from a model file.  Raises ValueError where they are none."""
    if not isinstance(compositions, list | tuple):
        raise ValueError(f"compositions are {compositions!r:.99}; a list is wanted")
    for one in compositions:
        known = isinstance(one, dict) and all(symbol in chemical_symbols[1:] for symbol in one)
        if not (known and one and all(type(atoms) is int and atoms > 0 for atoms in one.values())):
            raise ValueError(f"composition is {one!r:.99}; a table of elements and their numbers of atoms is wanted")
    return list(compositions)


def formula(counts: np.ndarray) -> str:
    """Formula of atoms by atomic number [119]."""
    return Formula.from_dict(_composition(counts)).format("hill")


def formulas(compositions: Sequence[Composition]) -> str:
    """Formulas of a few compositions, and how many more there are: "C2H6O, C9H8O4"."""
    names = [formula(counts) for counts in counts_of(compositions[:_NAMED])]
    return ", ".join(names) + (f" and {len(compositions) - _NAMED} more" if len(compositions) > _NAMED else "")


def _composition(counts: np.ndarray) -> Composition:
    return {chemical_symbols[z]: int(counts[z]) for z in np.flatnonzero(counts).tolist()}
