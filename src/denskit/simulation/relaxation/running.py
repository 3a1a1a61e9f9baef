"""The structures under way in a relaxation: their coordinates, and the optimizer's history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from denskit.batch import Batch, System
from denskit.runtime.work_folder import below
from denskit.simulation.potential import Evaluation
from denskit.simulation.relaxation.cells import CellRelaxation, deformation
from denskit.simulation.relaxation.optimizers import FIRE, LBFGS
from denskit.simulation.state import SystemTensors

_OLD_NAMES = {"x": "coordinates", "number": "atomic_numbers", "tag": "tags"}  # of files of earlier versions


@dataclass(frozen=True)
class Running:
    """B structures under way, in float64.

    ``geometry``: the rows of a system are its atoms and, where its cell relaxes, the three rows of its deformation (see
    ``cells.py``).  Rows: "coordinates" [R, 3], "previous" coordinates of the last sound evaluation, "start" the first
    ones; "atomic_numbers", "fixed", "tags", "is_cell" [R].  Systems: "index" [B] in the source, "moves" [B] so far,
    "energy" [B] of the last sound evaluation (NaN before it), "cell" [B, 3, 3] undeformed, "pbc" [B, 3].
    ``optimizer``: the optimizer's state, with the same rows.
    """

    geometry: SystemTensors
    optimizer: SystemTensors
    with_cell: bool  # cells relax, too

    @classmethod
    def begin(cls, system: System, index: int, optimizer: LBFGS | FIRE, *, with_cell: bool) -> Running:
        """One structure before its first move."""
        n, extra = len(system), 3 if with_cell else 0

        def padded(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.concatenate([values, np.zeros((extra, *values.shape[1:]), values.dtype)]))

        coordinates = padded(system.positions.astype(np.float64))
        geometry = SystemTensors(
            torch.tensor([n + extra]),
            {
                "coordinates": coordinates,
                "previous": coordinates,
                "start": coordinates,
                "atomic_numbers": padded(system.atomic_numbers),
                "fixed": padded(system.fixed),
                "tags": padded(system.tags),
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
        """The systems where ``keep`` [B] is True."""
        return replace(self, geometry=self.geometry.select(keep), optimizer=self.optimizer.select(keep))

    def apart(self) -> Iterator[Running]:
        """The systems, one by one."""
        places = torch.arange(self.num_systems, device=self.geometry.counts.device)
        return (self.select(places == place) for place in range(self.num_systems))

    @staticmethod
    def join(parts: Sequence[Running]) -> Running:
        """All systems of the parts, in order."""
        return Running(
            SystemTensors.join([part.geometry for part in parts]),
            SystemTensors.join([part.optimizer for part in parts]),
            parts[0].with_cell,
        )

    def to(self, device: torch.device | str) -> Running:
        """A copy on a device."""
        return replace(self, geometry=self.geometry.to(device), optimizer=self.optimizer.to(device))

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for a state file."""
        found = {}
        for part, values in (("geometry", self.geometry), ("optimizer", self.optimizer)):
            found[f"{part}/counts"] = values.counts
            found |= {f"{part}/rows/{name}": value for name, value in values.rows.items()}
            found |= {f"{part}/systems/{name}": value for name, value in values.systems.items()}
        return found

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Running:
        """From :meth:`tensors`.  Raises KeyError for a missing tensor."""
        geometry, optimizer = (
            SystemTensors(
                tensors[f"{part}/counts"],
                {_OLD_NAMES.get(name, name): value for name, value in below(tensors, f"{part}/rows/").items()},
                below(tensors, f"{part}/systems/"),
            )
            for part in ("geometry", "optimizer")
        )
        return cls(geometry, optimizer, with_cell=bool(geometry.rows["is_cell"].any()))

    def batch(self) -> Batch:
        """The structures at their present coordinates, without edges."""
        positions, cell = self.positions_and_cell("coordinates")
        rows, systems, count = self.geometry.rows, self.geometry.systems, self.num_systems
        device = positions.device

        def atoms(values: Tensor) -> Tensor:
            # without cells the tensor itself, not a copy: a potential recognises its last batch by these tensors
            return values[~rows["is_cell"]] if self.with_cell else values

        return Batch(
            positions=positions,
            atomic_numbers=atoms(rows["atomic_numbers"]),
            cell=cell,
            pbc=systems["pbc"],
            system_index=atoms(self.geometry.system_index),
            n_atoms=self.n_atoms if self.with_cell else self.geometry.counts,
            fixed=atoms(rows["fixed"]),
            tags=atoms(rows["tags"]),
            denoise=torch.ones(count, dtype=torch.bool, device=device),
            atom_mask=torch.ones(len(positions), dtype=torch.bool, device=device),
        )

    def positions_and_cell(self, name: str) -> tuple[Tensor, Tensor]:
        """Positions [N, 3] and cells [B, 3, 3] (Å) of the rows ``name``: "coordinates", "previous" or "start"."""
        rows, cell = self.geometry.rows, self.geometry.systems["cell"]
        coordinates, is_cell = rows[name], rows["is_cell"]
        if not self.with_cell:
            return coordinates, cell
        gradient = deformation(coordinates[is_cell].reshape(-1, 3, 3), self.n_atoms)
        at_atoms = gradient[self.geometry.system_index[~is_cell]]
        return torch.einsum("nj,nij->ni", coordinates[~is_cell], at_atoms), cell @ gradient.mT

    def forces(self, batch: Batch, evaluation: Evaluation, cell: CellRelaxation | None) -> Tensor:
        """Forces [R, 3] (eV/Å) on all coordinates, zero on fixed atoms; ``batch`` is the evaluated :meth:`batch`."""
        free = torch.where(batch.fixed[:, None], 0.0, evaluation.forces)
        if cell is None or not self.with_cell:
            return free
        assert evaluation.stress is not None
        is_cell = self.geometry.rows["is_cell"]
        scaled = self.geometry.rows["coordinates"][is_cell].reshape(-1, 3, 3)
        gradient = deformation(scaled, self.n_atoms)
        forces = torch.zeros_like(self.geometry.rows["coordinates"])
        forces[~is_cell] = torch.einsum("ni,nij->nj", free, gradient[batch.system_index])
        forces[is_cell] = cell.forces(scaled, evaluation.stress, batch.cell, self.n_atoms).reshape(-1, 3)
        return forces

    def moved(self, move: Tensor, optimizer: SystemTensors, energy: Tensor) -> Running:
        """The structures after one move [R, 3] (Å); energy: [B] eV, before the move."""
        coordinates = self.geometry.rows["coordinates"]
        geometry = self.geometry.having(
            rows={"coordinates": coordinates + move, "previous": coordinates},
            systems={"moves": self.geometry.systems["moves"] + 1, "energy": energy},
        )
        return replace(self, geometry=geometry, optimizer=optimizer)
