"""Atoms on top of each other: a model has not seen any, so its forces there may be small and its energies ordinary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np
from ase.data import chemical_symbols

from denskit.batch import System
from denskit.data.base import Source, spaced
from denskit.data.structure_arrays import close_pair, numbered

SHORTEST = 0.6  # Å: shorter than any bond (H2 is 0.74)
LOOKED_AT = 1000  # structures


def overlaps(structures: Iterable[System]) -> list[tuple[System, int, int]]:
    """The structures that have two atoms nearer than any bond, each with such a pair.

    Those whose lattice vectors span no volume are passed over: no search of neighbours takes them.
    """
    found = []
    for system in structures:
        cell = system.cell[system.pbc]
        if not (np.isfinite(system.positions).all() and np.isfinite(cell).all()):
            continue
        if np.linalg.matrix_rank(cell) < len(cell):
            continue
        pair = close_pair(system.positions, system.cell, system.pbc, within=SHORTEST)
        if pair is not None:
            found.append((system, *pair))
    return found


def overlap_warnings(structures: Sequence[System] | Source, name: str) -> list[str]:
    """A warning that names the structures of ``name`` with atoms on top of each other; nothing where there are none.

    Of many structures ``LOOKED_AT`` are looked at, evenly spaced.
    """
    places = spaced(len(structures), LOOKED_AT)
    found = overlaps(_readable(structures, places))
    if not found:
        return []
    system, one, other = found[0]
    frames = numbered(np.array([system.index for system, _, _ in found]))
    sample = f" of {len(places):,} that were looked at" if len(places) < len(structures) else ""
    pair = " and ".join(f"{atom} ({chemical_symbols[system.atomic_numbers[atom]]})" for atom in (one, other))
    return [
        f"warning: {name}: in {frames}{sample}, atoms are nearer than any bond ({SHORTEST:g} Å), such as {pair} of "
        f"frame {system.index}. The model has seen no such structures: its energies and forces mean nothing there"
    ]


def _readable(structures: Sequence[System] | Source, places: np.ndarray) -> Iterator[System]:
    """The structures at these places, but for damaged records, which are named where they are used."""
    for place in places:
        with suppress(ValueError):
            yield structures[int(place)]
