"""ASE's atoms to batches and back."""

from __future__ import annotations

from collections.abc import Sequence

import ase
import numpy as np
import torch
from ase.constraints import FixAtoms, FixCartesian

from denskit.batch import Batch, System
from denskit.data.base import collate


def batch_of(structures: Sequence[ase.Atoms], device: str | torch.device = "cpu") -> Batch:
    """A batch of structures, positions and cells in float64, without edges; atoms held by FixAtoms are ``fixed``.

    Raises ValueError for an empty sequence, a structure without atoms, and constraints other than wholly fixed atoms.
    """
    batch, _ = collate([_system(atoms, place) for place, atoms in enumerate(structures)], torch.float64)
    return batch.to(device)


def atoms_of(batch: Batch) -> list[ase.Atoms]:
    """The systems of a batch as ASE's atoms, with tags and fixed atoms."""
    positions, cell = batch.positions.detach().double().cpu().numpy(), batch.cell.double().cpu().numpy()
    numbers, pbc, fixed, tags, system = (
        tensor.cpu().numpy()
        for tensor in (batch.atomic_numbers, batch.pbc, batch.fixed, batch.tags, batch.system_index)
    )
    mask = batch.atom_mask.cpu().numpy()
    structures = []
    for place in range(batch.num_systems):
        own = np.flatnonzero((system == place) & mask)
        constraint = FixAtoms(indices=np.flatnonzero(fixed[own])) if fixed[own].any() else None
        structures.append(
            ase.Atoms(
                numbers[own], positions[own], tags=tags[own], cell=cell[place], pbc=pbc[place], constraint=constraint
            )
        )
    return structures


def _system(atoms: ase.Atoms, place: int) -> System:
    if len(atoms) == 0:
        raise ValueError(f"structure {place} has no atoms; at least one is wanted")
    return System(
        positions=atoms.positions.astype(np.float64),
        atomic_numbers=atoms.numbers.astype(np.int64),
        cell=np.array(atoms.cell.array, dtype=np.float64),
        pbc=np.array(atoms.pbc, dtype=bool),
        fixed=_fixed(atoms, place),
        tags=atoms.get_tags().astype(np.int64),
        index=place,
    )


def _fixed(atoms: ase.Atoms, place: int) -> np.ndarray:
    fixed = np.zeros(len(atoms), dtype=bool)
    for constraint in atoms.constraints:
        if isinstance(constraint, FixAtoms) or (isinstance(constraint, FixCartesian) and np.all(constraint.mask)):
            fixed[constraint.index] = True
        else:
            raise ValueError(
                f"structure {place} has the constraint {type(constraint).__name__}; only wholly fixed atoms (FixAtoms) "
                "are known here. Remove it, or use the calculator with ASE's own optimizers and dynamics"
            )
    return fixed
