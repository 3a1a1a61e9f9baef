"""A potential with a formula: springs between all pairs of equal molecules; cheap, so that statistics are long."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from denskit.batch import Batch
from denskit.simulation.potential import Evaluation


@dataclass(frozen=True)
class Springs:
    """E = sum over pairs of stiffness / 2 (r - length)^2; every molecule of a batch has ``atoms`` atoms."""

    atoms: int = 4
    stiffness: float = 5.0  # eV/Å^2
    length: float = 1.5  # Å
    farthest: float = 100.0  # Å

    def __call__(self, batch: Batch) -> Evaluation:
        if bool(self.broken(batch).any()):
            raise ValueError("broken")
        r = batch.positions.reshape(-1, self.atoms, 3)
        vectors = r[:, None] - r[:, :, None]  # from the second index to the third
        distance = vectors.square().sum(-1) + torch.eye(self.atoms, dtype=r.dtype)
        distance = distance.sqrt()
        stretch = (distance - self.length) * (1 - torch.eye(self.atoms, dtype=r.dtype))
        energies = self.stiffness / 4 * stretch.square().sum(-1)  # half of each pair for each atom
        forces = (self.stiffness * stretch / distance)[..., None] * vectors
        return Evaluation(energy=energies.sum(-1), energies=energies.flatten(), forces=forces.sum(2).reshape(-1, 3))

    def broken(self, batch: Batch) -> Tensor:
        r = batch.positions.reshape(-1, self.atoms, 3)
        return ~((r - r[:, :1]).abs().amax((1, 2)) <= self.farthest)
