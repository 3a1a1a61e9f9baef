"""Structures that no model has seen, so that its forces there may be small and its energies ordinary: with atoms on top
of each other, or in parts far from each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np
from ase.data import chemical_symbols

from denskit.batch import System
from denskit.data.base import Source, spaced
from denskit.data.periodicity import GONE, open_gaps
from denskit.data.records import numbered_in
from denskit.data.structure_arrays import close_pair

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


def geometry_warnings(structures: Sequence[System] | Source, name: str) -> list[str]:
    """Warnings that name the structures of ``name`` of which a model knows nothing: those with atoms on top of each
    other, and those in parts that do not see each other.

    Of many structures ``LOOKED_AT`` are looked at, evenly spaced.
    """
    places = spaced(len(structures), LOOKED_AT)
    sample = f" of {len(places):,} that were looked at" if len(places) < len(structures) else ""
    looked_at = list(_readable(structures, places))

    def frames(found: Sequence[System]) -> str:
        return numbered_in(structures, [system.index for system in found])

    said = []
    if found := overlaps(looked_at):
        system, one, other = found[0]
        pair = " and ".join(f"{atom} ({chemical_symbols[system.atomic_numbers[atom]]})" for atom in (one, other))
        bond = f"nearer than any bond ({SHORTEST:g} Å)"
        said.append(
            f"warning: {name}: in {frames([system for system, _, _ in found])}{sample}, "
            + (f"atoms {pair} are {bond}" if len(found) == 1 else f"atoms are {bond}, such as {pair} of the first")
            + ". The model has seen no such structures: its energies and forces mean nothing there"
        )
    gaps = [_gap(system) for system in looked_at]
    if torn := [system for system, gap in zip(looked_at, gaps, strict=True) if gap > GONE]:
        said.append(
            f"warning: {name}: in {frames(torn)}{sample}, parts of the structure are up to {max(gaps):.4g} Å apart: to "
            "the model they are separate. Is the simulation exploded that it comes from?"
        )
    return said


def _gap(system: System) -> float:
    """The largest gap (Å) along open directions; 0 for coordinates that are not finite."""
    if not (np.isfinite(system.positions).all() and np.isfinite(system.cell).all()):
        return 0.0
    return float(open_gaps(system.positions[None], system.cell[None], system.pbc)[0])


def _readable(structures: Sequence[System] | Source, places: np.ndarray) -> Iterator[System]:
    """The structures at these places, but for damaged records, which are named where they are used."""
    for place in places:
        with suppress(ValueError):
            yield structures[int(place)]
