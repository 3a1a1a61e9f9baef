"""The structures under way in a relaxation: their coordinates, and the optimizer's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denskit.batch import Batch, System
from denskit.runtime.work_folder import below
from denskit.simulation.potential import Evaluation
from denskit.simulation.relaxation.cells import CellRelaxation, deformation
from denskit.simulation.relaxation.optimizers import FIRE, LBFGS
from denskit.simulation.state import RowState, tensors_of


@dataclass(frozen=True, kw_only=True)
class Running(RowState):
    """B structures under way, in float64.

    The R rows of a system are its atoms and, where its cell relaxes, the three rows of its deformation (``cells.py``).
    """

    by_row = frozenset({"coordinates", "previous", "start", "atomic_numbers", "fixed", "tags", "is_cell"})

    coordinates: Tensor  # [R, 3]
    previous: Tensor  # [R, 3], of the last sound evaluation
    start: Tensor  # [R, 3]
    atomic_numbers: Tensor  # [R]
    fixed: Tensor  # [R] bool
    tags: Tensor  # [R]
    is_cell: Tensor  # [R] bool
    index: Tensor  # [B] in the source
    moves: Tensor  # [B] so far
    energy: Tensor  # [B] eV, of the last sound evaluation; NaN before it
    cell: Tensor  # [B, 3, 3] Å, undeformed
    pbc: Tensor  # [B, 3] bool
    memory: RowState  # of the optimizer
    with_cell: bool  # cells relax, too

    @classmethod
    def begin(cls, system: System, index: int, optimizer: LBFGS | FIRE, *, with_cell: bool) -> Running:
        """One structure before its first move."""
        n, extra = len(system), 3 if with_cell else 0

        def padded(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.concatenate([values, np.zeros((extra, *values.shape[1:]), values.dtype)]))

        coordinates, counts = padded(system.positions.astype(np.float64)), torch.tensor([n + extra])
        return cls(
            counts=counts,
            coordinates=coordinates,
            previous=coordinates,
            start=coordinates,
            atomic_numbers=padded(system.atomic_numbers),
            fixed=padded(system.fixed),
            tags=padded(system.tags),
            is_cell=torch.arange(n + extra) >= n,
            index=torch.tensor([index]),
            moves=torch.tensor([0]),
            energy=torch.tensor([torch.nan], dtype=torch.float64),
            cell=torch.from_numpy(system.cell.astype(np.float64))[None],
            pbc=torch.from_numpy(np.array(system.pbc))[None],
            memory=optimizer.start(counts),
            with_cell=with_cell,
        )

    @property
    def n_atoms(self) -> Tensor:
        """Atoms of each system [B]."""
        return self.counts - 3 * self.with_cell

    def apart(self) -> Iterator[Running]:
        """The systems, one by one."""
        places = torch.arange(self.num_systems, device=self.counts.device)
        return (self.select(places == place) for place in range(self.num_systems))

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for a state file."""
        return tensors_of(self) | tensors_of(self.memory, "memory.")

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], optimizer: LBFGS | FIRE) -> Running:
        """From :meth:`tensors`.  Raises TypeError for missing tensors."""
        memory = optimizer.Memory(**below(tensors, "memory."))
        own: dict[str, Any] = {name: value for name, value in tensors.items() if "." not in name}
        return cls(**own, memory=memory, with_cell=bool(own["is_cell"].any()))

    def batch(self) -> Batch:
        """The structures at their present coordinates, without edges."""
        positions, cell = self.positions_and_cell(self.coordinates)

        def atoms(values: Tensor) -> Tensor:
            # without cells the tensor itself, not a copy: a potential recognises its last batch by these tensors
            return values[~self.is_cell] if self.with_cell else values

        return Batch(
            positions=positions,
            atomic_numbers=atoms(self.atomic_numbers),
            cell=cell,
            pbc=self.pbc,
            system_index=atoms(self.system_index),
            n_atoms=self.n_atoms if self.with_cell else self.counts,
            fixed=atoms(self.fixed),
            tags=atoms(self.tags),
            denoise=torch.ones(self.num_systems, dtype=torch.bool, device=positions.device),
        )

    def positions_and_cell(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """Positions [N, 3] and cells [B, 3, 3] (Å) of coordinates [R, 3]."""
        if not self.with_cell:
            return coordinates, self.cell
        gradient = deformation(coordinates[self.is_cell].reshape(-1, 3, 3), self.n_atoms)
        at_atoms = gradient[self.system_index[~self.is_cell]]
        return torch.einsum("nj,nij->ni", coordinates[~self.is_cell], at_atoms), self.cell @ gradient.mT

    def farthest(self) -> Tensor:
        """Largest distance [B] (Å) of an atom from its start, to which the deformation of the cell is applied.

        (x - x_0) F^T, so it does not depend on the origin.
        """
        change = self.coordinates - self.start  # of the rows of the cell it is n U itself, which starts at 0
        moves = torch.zeros_like(change)
        moves[~self.is_cell], _ = self.positions_and_cell(change)
        return self.longest(moves)

    def forces(self, batch: Batch, evaluation: Evaluation, cell: CellRelaxation | None) -> Tensor:
        """Forces [R, 3] (eV/Å) on all coordinates, zero on fixed atoms; ``batch`` is the evaluated :meth:`batch`."""
        free = torch.where(batch.fixed[:, None], 0.0, evaluation.forces)
        if cell is None or not self.with_cell:
            return free
        assert evaluation.stress is not None
        scaled = self.coordinates[self.is_cell].reshape(-1, 3, 3)
        gradient = deformation(scaled, self.n_atoms)
        forces = torch.zeros_like(self.coordinates)
        forces[~self.is_cell] = torch.einsum("ni,nij->nj", free, gradient[batch.system_index])
        forces[self.is_cell] = cell.forces(scaled, evaluation.stress, batch.cell, self.n_atoms).reshape(-1, 3)
        return forces

    def moved(self, move: Tensor, memory: RowState, energy: Tensor) -> Running:
        """The structures after one move [R, 3] (Å); energy: [B] eV, before the move."""
        coordinates = self.coordinates
        return replace(
            self,
            coordinates=coordinates + move,
            previous=coordinates,
            moves=self.moves + 1,
            energy=energy,
            memory=memory,
        )
