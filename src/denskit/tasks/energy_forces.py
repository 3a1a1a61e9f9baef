"""The ordinary task: energy, forces and (for crystals) stress of uncorrupted structures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from denskit.batch import Batch, Prepared, Targets
from denskit.settings import Settings
from denskit.tasks.base import Term
from denskit.tasks.losses import LOSSES, HuberLoss, LossName, PublishedLoss, zero_unless

# for many materials instead of the defaults, which are for molecules: as published with EquiformerV3 and eSEN
FOR_MANY_MATERIALS = {"energy_loss": "mae_per_atom", "energy_weight": 20.0, "forces_weight": 20.0}


class LossConfig(Settings):
    """Weights and form of the terms that all tasks share; the settings of every task derive from it.

    A term of weight 0 is left out: its label and its prediction may be absent.
    """

    if TYPE_CHECKING:
        name: str  # every task has its own, with a default
    energy_weight: float = Field(default=1.0, ge=0)
    """Weight of the energy term (the paper's lambda_E)."""
    forces_weight: float = Field(default=80.0, ge=0)
    """Weight of the forces term (the paper's lambda_F)."""
    stress_weight: float = Field(default=0.0, ge=0)
    """Weight of the stress term."""
    stress_loss: Literal["norm", "mae"] = "norm"
    """Stress error of a structure: Frobenius norm (squared in the form "paper"), or mean of the absolute components.
    With "huber": Huber function of the norm, or mean of the Huber functions of the components."""
    energy_loss: Literal["mae", "mae_per_atom"] = "mae"
    """Energy error of a structure, or that error divided by its number of atoms."""
    loss: LossName = "published"
    """Form of the terms over atoms: "published" (MD17: unsquared norms, mean over the atoms scored), "published_oc20"
    (the same norms, mean over all free atoms), "paper" (as printed) or "huber" (Huber function of the norms and
    of the energy error, mean over the atoms scored)."""
    huber_delta: float = Field(default=0.01, gt=0, allow_inf_nan=False)
    """Error at which loss=huber changes from quadratic to linear, in all terms (MACE: 0.01). In the model's units;
    times the scales in the log, in eV and eV/Å. For noise in units of sigma."""

    @model_validator(mode="after")
    def _some_weight(self) -> LossConfig:
        if self.energy_weight == self.forces_weight == self.stress_weight == 0:
            raise ValueError(
                "task: energy_weight, forces_weight and stress_weight are all 0, so nothing is learned; "
                "set at least one of them above 0"
            )
        return self

    @model_validator(mode="after")
    def _delta_has_effect(self) -> LossConfig:
        if self.loss != "huber" and self.huber_delta != type(self).model_fields["huber_delta"].default:
            raise ValueError(
                f"huber_delta={self.huber_delta:g} has no effect with loss={self.loss}; set loss=huber or leave "
                "huber_delta out"
            )
        return self

    @property
    def form(self) -> PublishedLoss:
        """The form of the loss, with its settings."""
        return HuberLoss(self.huber_delta) if self.loss == "huber" else LOSSES[self.loss]


class EnergyForcesConfig(LossConfig):
    """Settings of :class:`EnergyForces`."""

    name: Literal["energy_forces"] = "energy_forces"
    """Name of the task."""


class EnergyForces:
    """Train on energy, forces and stress without corruption."""

    def __init__(self, config: EnergyForcesConfig) -> None:
        self.config = config

    @property
    def heads(self) -> dict[str, str]:
        """No further heads."""
        return {}

    def prepare(self, batch: Batch, targets: Targets, keys: Tensor, progress: float) -> Prepared:
        """The unchanged batch, without force input (see :class:`denskit.tasks.base.Task`)."""
        return Prepared(
            batch=batch,
            targets=targets,
            force_input=torch.zeros_like(batch.positions),
            noise=torch.zeros_like(batch.positions),
            noise_mask=torch.zeros_like(batch.fixed),
        )

    def losses(self, prediction: Mapping[str, Tensor], prepared: Prepared, progress: float) -> dict[str, Term]:
        """Terms "energy", "forces", "stress" with a weight (see :class:`denskit.tasks.base.Task`)."""
        return label_terms(self.config, prediction, prepared)


def label_terms(
    config: LossConfig,
    prediction: Mapping[str, Tensor],
    prepared: Prepared,
    *,
    energy_scored: Tensor | bool = True,
    forces_scored: Tensor | bool = True,
    stress_scored: Tensor | bool = True,
) -> dict[str, Term]:
    """Weighted terms of energy, forces and stress in model units.

    Scored are structures and atoms that have the label and that the masks ([B], [N], [B]; default all) select.  The
    energy error is |E - E'| in all forms but "huber", where it is the Huber function of E - E'.
    """
    form, batch, targets = config.form, prepared.batch, prepared.targets
    terms = {}
    if config.energy_weight > 0:
        scored = targets.energy_mask & energy_scored
        difference = zero_unless(scored, prediction["energy"] - targets.energy)
        if config.energy_loss == "mae_per_atom":
            difference = difference / batch.n_atoms
        sums = form.over_systems(form.size_of_number(difference), scored=scored, existing=targets.energy_mask)
        terms["energy"] = Term(*sums, config.energy_weight)
    if config.forces_weight > 0:
        existing = targets.forces_mask & batch.free_atoms
        difference = prediction["forces"] - targets.forces
        sums = form.over_atoms(difference, scored=existing & forces_scored, existing=existing, batch=batch)
        terms["forces"] = Term(*sums, config.forces_weight)
    if config.stress_weight > 0:
        scored = targets.stress_mask & stress_scored
        difference = zero_unless(scored, prediction["stress"] - targets.stress)
        mean = config.stress_loss == "mae"
        error = form.size_of_number(difference).mean((1, 2)) if mean else form.size(difference.flatten(1))
        sums = form.over_systems(error, scored=scored, existing=targets.stress_mask)
        terms["stress"] = Term(*sums, config.stress_weight)
    return terms
