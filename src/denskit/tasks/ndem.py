"""NDeM: denoising by the change of the forces (a successor of DeNS).

"Coordinate Denoising for Non-Equilibrium Molecular Representation Learning", CVPR 2026.  A displacement e changes the
forces to first order by F(x + e) - F(x) = -H e, with H the second derivatives of the energy.  NDeM takes H as c times
the identity: away from equilibrium, too, the *change* of the forces points back along the noise.  For every structure:

1. Copy it.  In the copy, x̃_i = x_i + u sigma n_i for free atoms drawn with a probability; n_i is from N(0, I), and u is
   drawn once for the structure, so that there is noise of several sizes.
2. Predict and score energy and forces f of the structure itself, as without denoising.
3. Predict a vector g_i of each atom of the copy by a head of its own, and compare f_i(x) - g_i(x̃) with u n_i.

g is a force with an unknown factor, the curvature, that its head learns.  docs/dens.md says what is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from denskit.batch import Batch, Prepared, Targets
from denskit.random import Use, uniform
from denskit.tasks.base import Term
from denskit.tasks.corruption import DenoisingConfig, displaced, draw_noise
from denskit.tasks.energy_forces import label_terms


class NDeMConfig(DenoisingConfig):
    """Settings of :class:`NDeM`."""

    name: Literal["ndem"] = "ndem"
    """Name of the task."""
    corruption_ratio: float = Field(default=0.25, gt=0, le=1)
    """Probability that a free atom of a copy is displaced."""
    smallest_noise: float = Field(default=0.2, gt=0, le=1)
    """The standard deviation of a copy's noise is drawn between this share of sigma and sigma."""
    coefficient: float = Field(default=1.0, ge=0)
    """Weight of the noise term (published: 1)."""
    coefficient_decay: Literal["linear", "none"] = "none"
    """Whether the weight of the noise term falls linearly to 0 over the training, or stays."""


class NDeM:
    """Train on all labels, and on the change of the forces between a structure and its displaced copy."""

    def __init__(self, config: NDeMConfig) -> None:
        self.config = config

    @property
    def heads(self) -> dict[str, str]:
        """A vector for each atom: the forces of displaced copies."""
        return {"noise": "1"}

    def prepare(self, batch: Batch, targets: Targets, keys: Tensor, progress: float) -> Prepared:
        """The structures, then their displaced copies without labels (see :class:`denskit.tasks.base.Task`).

        Structures with ``denoise`` False have a copy that is neither displaced nor scored.  There is no force input.
        """
        scored = batch.free_atoms & batch.denoise[batch.system_index]
        lots = uniform(keys[batch.system_index], Use.CHOOSE_ATOM, batch.number_in_system)
        drawn = lots < self.config.corruption_ratio
        smallest = self.config.smallest_noise
        size = smallest + (1 - smallest) * uniform(keys, Use.NOISE_SIZE, dtype=batch.positions.dtype)  # [B]
        noise = size[batch.system_index, None] * draw_noise(batch, keys, scored & drawn)
        displacement = self.config.sigma_of(batch, progress) * noise
        both = _with_copies(batch)
        return Prepared(
            batch=displaced(both, _for_copies(displacement)),
            targets=_unlabelled_copies(targets),
            force_input=torch.zeros_like(both.positions),
            noise=_for_copies(noise),
            noise_mask=_for_copies(scored),
        )

    def losses(self, prediction: Mapping[str, Tensor], prepared: Prepared, progress: float) -> dict[str, Term]:
        """Terms of the ordinary task, and "noise" on all free atoms of the copies."""
        terms = label_terms(self.config, prediction, prepared)
        batch, copies = prepared.batch, prepared.noise_mask
        # not half of all atoms: a batch that is padded for a recorded step has further ones at its end
        atoms = batch.n_atoms[: batch.num_systems // 2].sum()
        original = (torch.arange(batch.num_atoms, device=atoms.device) - atoms).clamp(min=0)
        change = prediction["forces"].index_select(0, original) - prediction["noise"]
        sums = self.config.form.over_atoms(change - prepared.noise, scored=copies, existing=copies, batch=batch)
        terms["noise"] = Term(*sums, self.config.coefficient_at(progress))
        return terms


def _for_copies(value: Tensor) -> Tensor:
    """Rows [2 N, ...]: zero or False for the structures, then ``value`` [N, ...] for their copies."""
    return torch.cat([torch.zeros_like(value), value])


def _unlabelled_copies(targets: Targets) -> Targets:
    """The labels, then none for the copies."""
    rows = {name: value for name, value in vars(targets).items() if value is not None}
    return Targets(**{name: torch.cat([value, torch.zeros_like(value)]) for name, value in rows.items()})


def _with_copies(batch: Batch) -> Batch:
    """The structures, then a copy of each, without edges."""
    rows = {name: value for name, value in vars(batch).items() if name != "edges"}
    doubled: dict[str, Any] = {name: torch.cat([value, value]) for name, value in rows.items()}
    doubled["system_index"] = torch.cat([batch.system_index, batch.system_index + batch.num_systems])
    return Batch(**doubled)
