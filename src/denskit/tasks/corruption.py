"""Shared by tasks that corrupt positions: random noise, the corrupted batch, the settings and loss of the noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from denskit.batch import Batch, Prepared
from denskit.random import Use, normal
from denskit.tasks.base import Term
from denskit.tasks.energy_forces import LossConfig
from denskit.tasks.losses import LOSSES


class DenoisingConfig(LossConfig):
    """Settings of the noise term of every task that denoises."""

    coefficient: float = Field(5.0, ge=0)
    """Weight of the noise term (the paper's lambda_DeNS)."""
    coefficient_decay: Literal["linear", "none"] = "linear"
    """Whether the weight of the noise term falls linearly to 0 over the training, or stays."""

    def coefficient_at(self, progress: float) -> float:
        """Weight of the noise term when the share ``progress`` of the training is over."""
        return self.coefficient * (1.0 - progress if self.coefficient_decay == "linear" else 1.0)


def number_in_system(batch: Batch) -> Tensor:
    """Number [N] of each atom within its own system, from 0."""
    first = torch.searchsorted(batch.system_index, batch.system_index)  # ascending: the first atom of the same system
    return torch.arange(batch.num_atoms, device=first.device) - first


def draw_noise(batch: Batch, keys: Tensor, noise_mask: Tensor) -> Tensor:
    """Three standard normal numbers [N, 3] for each atom in ``noise_mask`` [N], zero for the others."""
    components = torch.arange(3, device=keys.device)
    atom_keys, atom_number = keys[batch.system_index, None], number_in_system(batch)[:, None]
    drawn = normal(atom_keys, Use.NOISE, atom_number, components, dtype=batch.positions.dtype)
    return torch.where(noise_mask[:, None], drawn, torch.zeros_like(drawn))


def displaced(batch: Batch, displacement: Tensor) -> Batch:
    """The batch with atoms moved by ``displacement`` [N, 3] Å, without edges, which belong to the old positions."""
    return replace(batch, positions=batch.positions + displacement, edges=None)


def noise_term(config: DenoisingConfig, noise: Tensor, prepared: Prepared, progress: float) -> Term:
    """Loss of predicted ``noise`` [N, 3], in units of sigma, on the corrupted atoms."""
    batch = prepared.batch
    sums = LOSSES[config.loss].over_atoms(
        noise - prepared.noise,
        scored=prepared.noise_mask,
        existing=prepared.noise_mask | (batch.free_atoms & prepared.targets.forces_mask),
        batch=batch,
    )
    return Term(*sums, config.coefficient_at(progress))
