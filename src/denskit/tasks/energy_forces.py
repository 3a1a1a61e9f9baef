"""The ordinary task: energy, forces and (for crystals) stress of the structures as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from denskit.batch import Batch, Prepared, Targets
from denskit.tasks.base import Term
from denskit.tasks.losses import LOSSES, LossForm, LossName, Sums, zero_unless
from denskit.tasks.selection import free_atoms


class LossConfig(BaseModel):
    """Weights and form of the terms that all tasks share.

    A term whose weight is 0 is left out, so its label and its prediction may be absent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    energy_weight: float = Field(1.0, ge=0)
    """Weight of the energy term (the paper's lambda_E)."""
    forces_weight: float = Field(80.0, ge=0)
    """Weight of the forces term (the paper's lambda_F)."""
    stress_weight: float = Field(0.0, ge=0)
    """Weight of the stress term: the Frobenius norm of the difference (squared in the form "paper")."""
    energy_loss: Literal["mae", "mae_per_atom"] = "mae"
    """Energy error of a structure, or the same divided by its number of atoms."""
    loss: LossName = "published"
    """Form of the terms over atoms: "published" (MD17: unsquared norms, mean over the atoms scored), "published_oc20"
    (the same norms, mean over all free atoms) or "paper" (as printed)."""

    @model_validator(mode="after")
    def _some_weight(self) -> LossConfig:
        if self.energy_weight == self.forces_weight == self.stress_weight == 0:
            raise ValueError(
                "task: energy_weight, forces_weight and stress_weight are all 0, so there is nothing to learn; "
                "set at least one of them above 0"
            )
        return self


class EnergyForcesConfig(LossConfig):
    """Settings of :class:`EnergyForces`."""

    name: Literal["energy_forces"] = "energy_forces"
    """Name of the task."""


class EnergyForces:
    """Train on energy, forces and stress, without corrupting anything."""

    def __init__(self, config: EnergyForcesConfig) -> None:
        self.config = config

    @property
    def heads(self) -> dict[str, str]:
        """None: what is predicted anyway suffices."""
        return {}

    def prepare(self, batch: Batch, targets: Targets, keys: Tensor, progress: float) -> Prepared:
        """The batch as it is (see :class:`denskit.tasks.base.Task`); nothing of the forces is shown to the model."""
        return Prepared(
            batch=batch,
            targets=targets,
            force_input=torch.zeros_like(batch.positions),
            noise=torch.zeros_like(batch.positions),
            noise_mask=torch.zeros_like(batch.atom_mask),
        )

    def losses(self, prediction: Mapping[str, Tensor], prepared: Prepared, progress: float) -> dict[str, Term]:
        """Terms "energy", "forces", "stress" with a weight (see :class:`denskit.tasks.base.Task`)."""
        every_system = torch.ones_like(prepared.targets.energy_mask)
        return label_terms(
            self.config,
            prediction,
            prepared,
            energy_scored=every_system,
            forces_scored=prepared.batch.atom_mask,
            stress_scored=every_system,
        )


def label_terms(
    config: LossConfig,
    prediction: Mapping[str, Tensor],
    prepared: Prepared,
    *,
    energy_scored: Tensor,
    forces_scored: Tensor,
    stress_scored: Tensor,
) -> dict[str, Term]:
    """The weighted terms of energy, forces and stress, scored where the given masks ([B], [N], [B]) and the labels say.

    Energy is |E - E'| in all forms.  Units are the model's.
    """
    form, batch, targets = LOSSES[config.loss], prepared.batch, prepared.targets
    terms = {}
    if config.energy_weight > 0:
        atoms = batch.n_atoms if config.energy_loss == "mae_per_atom" else None
        scored = targets.energy_mask & energy_scored
        sums = _energy_sums(form, prediction["energy"], targets, scored=scored, atoms=atoms)
        terms["energy"] = Term(sum=sums[0], count=sums[1], weight=config.energy_weight)
    if config.forces_weight > 0:
        existing = targets.forces_mask & free_atoms(batch)
        difference = prediction["forces"] - targets.forces
        sums = form.over_atoms(difference, scored=existing & forces_scored, existing=existing, batch=batch)
        terms["forces"] = Term(sum=sums[0], count=sums[1], weight=config.forces_weight)
    if config.stress_weight > 0:
        scored = targets.stress_mask & stress_scored
        difference = zero_unless(scored, prediction["stress"] - targets.stress)
        sums = form.over_systems(form.size(difference.flatten(1)), scored=scored, existing=targets.stress_mask)
        terms["stress"] = Term(sum=sums[0], count=sums[1], weight=config.stress_weight)
    return terms


def _energy_sums(form: LossForm, energy: Tensor, targets: Targets, *, scored: Tensor, atoms: Tensor | None) -> Sums:
    error = zero_unless(scored, energy - targets.energy).abs()
    if atoms is not None:
        error = error / atoms
    return form.over_systems(error, scored=scored, existing=targets.energy_mask)
