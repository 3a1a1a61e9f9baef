"""The structures that a relaxation works on at the moment: their coordinates, and the optimizer's memory of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from denskit.batch import Batch, System
from denskit.simulation.potential import Evaluation
from denskit.simulation.relaxation.cells import CellRelaxation, deformation
from denskit.simulation.relaxation.optimizers import FIRE, LBFGS
from denskit.simulation.relaxation.ragged import Ragged


@dataclass(frozen=True)
class Running:
    """B structures under way, all in float64.

    ``geometry``: rows are the atoms, and behind those of each system, where its cell relaxes, the three rows of its
    deformation (see ``cells.py``).  Rows "x" [R, 3] coordinates, "previous" those of the last sound evaluation, "start"
    the first ones; "number", "fixed", "tag", "is_cell" [R].  Systems "index" [B] place in the source, "moves" [B] made
    so far, "energy" [B] of the last sound evaluation (NaN before), "cell" [B, 3, 3] the undeformed one, "pbc" [B, 3].
    ``optimizer``: what the optimizer remembers, with the same rows.
    """

    geometry: Ragged
    optimizer: Ragged
    with_cell: bool  # cells relax, too

    @classmethod
    def begin(cls, system: System, index: int, optimizer: LBFGS | FIRE, *, with_cell: bool) -> Running:
        """One structure before its first move."""
        n, extra = len(system), 3 if with_cell else 0

        def padded(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.concatenate([values, np.zeros((extra, *values.shape[1:]), values.dtype)]))

        x = padded(system.positions.astype(np.float64))
        geometry = Ragged(
            torch.tensor([n + extra]),
            {
                "x": x,
                "previous": x,
                "start": x,
                "number": padded(system.atomic_numbers),
                "fixed": padded(system.fixed),
                "tag": padded(system.tags),
                "is_cell": torch.arange(n + extra) >= n,
            },
            {
                "index": torch.tensor([index]),
                "moves": torch.tensor([0]),
                "energy": torch.tensor([torch.nan], dtype=torch.float64),
                "cell": torch.from_numpy(system.cell.astype(np.float64))[None],
                "pbc": torch.from_numpy(np.array(system.pbc))[None],
            },
        )
        return cls(geometry, optimizer.start(geometry), with_cell)

    @property
    def num_systems(self) -> int:
        """B."""
        return self.geometry.num_systems

    @property
    def n_atoms(self) -> Tensor:
        """Atoms of each system [B]."""
        return self.geometry.counts - 3 * self.with_cell

    def select(self, keep: Tensor) -> Running:
        """Only the systems where ``keep`` [B] is True."""
        return replace(self, geometry=self.geometry.select(keep), optimizer=self.optimizer.select(keep))

    @staticmethod
    def join(parts: Sequence[Running]) -> Running:
        """All systems of the parts, in order."""
        return Running(
            Ragged.join([part.geometry for part in parts]),
            Ragged.join([part.optimizer for part in parts]),
            parts[0].with_cell,
        )

    def to(self, device: torch.device | str) -> Running:
        """Copy on a device."""
        return replace(self, geometry=self.geometry.to(device), optimizer=self.optimizer.to(device))

    def batch(self) -> Batch:
        """The structures as they are now, without edges."""
        positions, cell = self.positions_and_cell("x")
        rows, systems, count = self.geometry.rows, self.geometry.systems, self.num_systems
        device = positions.device

        def atoms(values: Tensor) -> Tensor:
            # without cells the tensors themselves, not copies: a potential knows by them that it has seen this batch
            return values[~rows["is_cell"]] if self.with_cell else values

        return Batch(
            positions=positions,
            atomic_numbers=atoms(rows["number"]),
            cell=cell,
            pbc=systems["pbc"],
            system_index=atoms(self.geometry.system),
            n_atoms=self.n_atoms if self.with_cell else self.geometry.counts,
            fixed=atoms(rows["fixed"]),
            tags=atoms(rows["tag"]),
            denoise=torch.ones(count, dtype=torch.bool, device=device),
            atom_mask=torch.ones(len(positions), dtype=torch.bool, device=device),
        )

    def positions_and_cell(self, name: str) -> tuple[Tensor, Tensor]:
        """Positions [N, 3] and cells [B, 3, 3] (Å) of the coordinates ``name``: "x", "previous" or "start"."""
        rows, cell = self.geometry.rows, self.geometry.systems["cell"]
        x, is_cell = rows[name], rows["is_cell"]
        if not self.with_cell:
            return x, cell
        gradient = deformation(x[is_cell].reshape(-1, 3, 3), self.n_atoms)
        at_atoms = gradient[self.geometry.system[~is_cell]]
        return torch.einsum("nj,nij->ni", x[~is_cell], at_atoms), cell @ gradient.mT

    def forces(self, batch: Batch, evaluation: Evaluation, cell: CellRelaxation | None) -> Tensor:
        """Forces [R, 3] (eV/Å) on all coordinates; zero on fixed atoms.  batch: :meth:`batch`, that was evaluated."""
        free = torch.where(batch.fixed[:, None], 0.0, evaluation.forces)
        if cell is None or not self.with_cell:
            return free
        assert evaluation.stress is not None
        is_cell = self.geometry.rows["is_cell"]
        scaled = self.geometry.rows["x"][is_cell].reshape(-1, 3, 3)
        gradient = deformation(scaled, self.n_atoms)
        forces = torch.zeros_like(self.geometry.rows["x"])
        forces[~is_cell] = torch.einsum("ni,nij->nj", free, gradient[batch.system_index])
        forces[is_cell] = cell.forces(scaled, evaluation.stress, batch.cell, self.n_atoms).reshape(-1, 3)
        return forces

    def moved(self, move: Tensor, optimizer: Ragged, energy: Tensor) -> Running:
        """One move [R, 3] (Å) later; energy: [B] eV, before it."""
        x = self.geometry.rows["x"]
        geometry = self.geometry.having(
            rows={"x": x + move, "previous": x},
            systems={"moves": self.geometry.systems["moves"] + 1, "energy": energy},
        )
        return replace(self, geometry=geometry, optimizer=optimizer)
