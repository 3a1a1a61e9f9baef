"""Batches with labels made up on the spot, and a model small enough to see through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

import ase
import torch
from torch import Tensor, nn

from denskit.batch import Batch, Prepared, Targets
from denskit.simulation.structures import batch_of

Container = TypeVar("Container", Batch, Targets, Prepared)


def make_batch(sizes: Sequence[int], *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
    """Molecules with random positions."""
    batch = batch_of([ase.Atoms(numbers=[6] * size) for size in sizes])
    generator = torch.Generator().manual_seed(seed)
    positions = 3.0 * torch.randn(batch.num_atoms, 3, generator=generator, dtype=torch.float64)
    return replace(batch, positions=positions).to(dtype=dtype)


def make_targets(batch: Batch, *, seed: int = 1) -> Targets:
    """Random labels, all present."""
    generator = torch.Generator().manual_seed(seed)
    n, b, dtype = batch.num_atoms, batch.num_systems, batch.positions.dtype
    return Targets(
        energy=torch.randn(b, generator=generator, dtype=torch.float64),
        forces=torch.randn(n, 3, generator=generator, dtype=torch.float64).to(dtype),
        stress=torch.randn(b, 3, 3, generator=generator, dtype=torch.float64).to(dtype),
        energy_mask=torch.ones(b, dtype=torch.bool),
        forces_mask=torch.ones(n, dtype=torch.bool),
        stress_mask=torch.ones(b, dtype=torch.bool),
    )


def hide_labels(targets: Targets, *, energy: Tensor, forces: Tensor, stress: Tensor) -> Targets:
    """The same without the labels where the masks are False; NaN stands in their place."""
    return replace(
        targets,
        energy=torch.where(energy, targets.energy, torch.nan),
        forces=torch.where(forces[:, None], targets.forces, torch.nan),
        stress=torch.where(stress[:, None, None], targets.stress, torch.nan),
        energy_mask=energy,
        forces_mask=targets.forces_mask & forces,
        stress_mask=stress,
    )


def select_systems(batch: Batch, targets: Targets, order: Sequence[int]) -> tuple[Batch, Targets]:
    """The systems of a batch, in another order or only some of them."""
    atoms = torch.cat([torch.nonzero(batch.system_index == system)[:, 0] for system in order])
    systems = torch.tensor(order)
    per_system = {"cell", "pbc", "n_atoms", "denoise", "energy", "stress", "energy_mask", "stress_mask"}

    def pick(container: Container) -> Container:
        values = {f.name: getattr(container, f.name) for f in fields(container)}
        return replace(
            container,
            **{
                name: value[systems if name in per_system else atoms]
                for name, value in values.items()
                if value is not None
            },
        )

    picked = pick(batch)
    numbers = torch.repeat_interleave(torch.arange(len(order)), picked.n_atoms)
    return replace(picked, system_index=numbers), pick(targets)


def tensors(container: Batch | Targets | Prepared) -> dict[str, Tensor]:
    """All tensors of a container by name, also of the containers inside."""
    found: dict[str, Tensor] = {}
    for field in fields(container):
        value = getattr(container, field.name)
        if isinstance(value, Tensor):
            found[field.name] = value
        elif value is not None:
            found.update({f"{field.name}.{name}": inner for name, inner in tensors(value).items()})
    return found


class LinearModel(nn.Module):
    """Outputs linear in the features x + a f, with x the position and f the force input of an atom.

    ``a`` starts at 0, so that force encoding acts on its own gradient and on no output.
    """

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)

        def start(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator, dtype=torch.float64))

        self.encoding = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.energy, self.forces, self.noise, self.stress = start(3), start(3, 3), start(3, 3), start(3, 9)

    def forward(self, prepared: Prepared) -> dict[str, Tensor]:
        batch = prepared.batch
        features = batch.positions + self.encoding * prepared.force_input[:, :3]
        pooled = features.new_zeros(batch.num_systems, 3).index_add(0, batch.system_index, features)
        return {
            "energy": pooled @ self.energy,
            "forces": features @ self.forces,
            "noise": features @ self.noise,
            "stress": (pooled @ self.stress).reshape(-1, 3, 3),
            "strain": (pooled @ self.stress).reshape(-1, 3, 3),
        }
