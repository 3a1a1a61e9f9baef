"""Conversion between ASE atoms and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import ase
import numpy as np
import torch
from ase.data import atomic_masses
from torch import Tensor

from denskit.batch import Batch, System
from denskit.data.base import collate, electrons_in
from denskit.data.readers.ase_files import fixed_atoms
from denskit.data.writing import plain
from denskit.runtime.progress import counted


def batch_of(structures: Sequence[ase.Atoms], device: str | torch.device = "cpu") -> Batch:
    """A batch without edges, positions and cells in float64; atoms held by FixAtoms are ``fixed``.

    Raises ValueError for an empty sequence, a structure without atoms, and constraints other than wholly fixed atoms.
    """
    batch, _ = collate([system_of(atoms, place) for place, atoms in enumerate(structures)], torch.float64)
    return batch.to(device)


def atoms_of(batch: Batch) -> list[ase.Atoms]:
    """The systems of a batch as ASE atoms, with tags and fixed atoms."""
    ends = batch.n_atoms.cumsum(0).tolist()
    positions, numbers, fixed, tags = (
        np.split(values.detach().cpu().numpy(), ends[:-1])
        for values in (batch.positions.double(), batch.atomic_numbers, batch.fixed, batch.tags)
    )
    cell, pbc = batch.cell.double().cpu().numpy(), batch.pbc.cpu().numpy()
    return [
        plain(
            System(
                positions=positions[place], atomic_numbers=numbers[place], cell=cell[place], pbc=pbc[place],
                fixed=fixed[place], tags=tags[place],
            )
        )
        for place in range(batch.num_systems)
    ]  # fmt: skip


def scaled(batch: Batch, factor: Tensor) -> Batch:
    """The batch with positions and cells multiplied by a factor [B]."""
    positions = batch.positions * factor[batch.system_index][:, None]
    return replace(batch, positions=positions, cell=batch.cell * factor[:, None, None])


def system_of(atoms: ase.Atoms, place: int = 0) -> System:
    """The structure number ``place`` without labels.  Raises ValueError as :func:`batch_of`."""
    if len(atoms) == 0:
        raise ValueError(f"structure {place} has no atoms; at least one is wanted")
    return System(
        positions=atoms.positions.astype(np.float64),
        atomic_numbers=atoms.numbers.astype(np.int64),
        cell=np.array(atoms.cell.array, dtype=np.float64),
        pbc=np.array(atoms.pbc, dtype=bool),
        fixed=wholly_fixed(atoms, place),
        tags=atoms.get_tags().astype(np.int64),
        index=place,
        electrons=electrons_in(atoms.info),
    )


def masses_of(atoms: ase.Atoms, place: int = 0) -> np.ndarray:
    """Masses [n] (amu) of the structure number ``place``: its own, or the standard ones of the elements.

    Raises ValueError for a mass that is not positive.
    """
    masses = np.asarray(atoms.get_masses(), dtype=np.float64)
    wrong = np.flatnonzero(~(masses > 0) | ~np.isfinite(masses))
    if len(wrong):
        raise ValueError(
            f"structure {place}, atom {wrong[0]} ({atoms.symbols[wrong[0]]}) has a mass of {masses[wrong[0]]:g} "
            "amu; wanted is a positive number. Correct the masses of the file, or leave them out "
            "(both are counted from 0)"
        )
    return masses


def has_own_masses(atoms: ase.Atoms) -> bool:
    """Whether masses differ from the standard ones, as of isotopes."""
    return not np.allclose(atoms.get_masses(), atomic_masses[atoms.numbers])


def note_of_masses(structures: int) -> str:
    """A note that the own masses of so many structures are used."""
    return f"note: {counted(structures, 'structure')} with own masses, as of isotopes, which are used"


def wholly_fixed(atoms: ase.Atoms, place: int = 0) -> np.ndarray:
    """The fixed atoms [n] bool of the structure number ``place``.  Raises ValueError for any other constraint."""
    fixed, others = fixed_atoms(atoms)
    if others:
        raise ValueError(
            f"structure {place} has the constraint {others[0]}; only wholly fixed atoms (FixAtoms) are supported. "
            "Remove it, or use the calculator with ASE's own optimizers and dynamics"
        )
    return fixed
