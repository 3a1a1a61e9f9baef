"""Noisy Nodes: noise on every input, with a target for each atom beside the ordinary labels (a rival of DeNS).

J. Godwin, M. Schaarschmidt, A. Gaunt, A. Sanchez-Gonzalez, Y. Rubanova, P. Veličković, J. Kirkpatrick, P. Battaglia,
"Simple GNN Regularisation for 3D Molecular Property Prediction & Beyond", ICLR 2022.  For every structure:

1. p̃_i = p_i + sigma n_i with n_i from N(0, I) for every free atom i.
2. The labels stay those of the original structure, and all of them are scored.
3. The model also predicts each atom's displacement from its relaxed position p*_i, or from p_i where the data have no
   relaxed position.  The target is (p̃_i - p*_i) / sigma or (p̃_i - p_i) / sigma = n_i.

The model gets no forces as input.  docs/dens.md lists the differences from published trainings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from denskit.batch import Batch, Prepared, Targets
from denskit.tasks.base import Term
from denskit.tasks.corruption import DenoisingConfig, Sigma, displaced, draw_noise, noise_term
from denskit.tasks.energy_forces import label_terms


class NoisyNodesConfig(DenoisingConfig):
    """Settings of :class:`NoisyNodes`."""

    name: Literal["noisy_nodes"] = "noisy_nodes"
    """Name of the task."""
    sigma: Sigma = 0.005
    """Standard deviation of the noise in each direction, in Å, as in DeNS: published are 0.005 (QM9), 0.3 (IS2RE)."""


class NoisyNodes:
    """Train on all labels of slightly displaced structures, and on the displacements."""

    def __init__(self, config: NoisyNodesConfig) -> None:
        self.config = config

    @property
    def heads(self) -> dict[str, str]:
        """A noise vector for each atom."""
        return {"noise": "1"}

    def prepare(self, batch: Batch, targets: Targets, keys: Tensor, progress: float) -> Prepared:
        """Displace all free atoms (see :class:`denskit.tasks.base.Task`).

        Structures with ``denoise`` False stay as they are.  There is no force input.
        """
        noise_mask = batch.free_atoms & batch.denoise[batch.system_index]
        noise, sigma = draw_noise(batch, keys, noise_mask), self.config.sigma_of(batch, progress)
        target = noise
        if targets.relaxation is not None and targets.relaxation_mask is not None:
            relaxing = (noise_mask & targets.relaxation_mask)[:, None]
            target = torch.where(relaxing, noise - targets.relaxation / sigma, noise)
        return Prepared(
            batch=displaced(batch, sigma * noise),
            targets=targets,
            force_input=torch.zeros_like(batch.positions),
            noise=target,
            noise_mask=noise_mask,
        )

    def losses(self, prediction: Mapping[str, Tensor], prepared: Prepared, progress: float) -> dict[str, Term]:
        """Terms of the ordinary task, all labels scored, and "noise" (see :class:`denskit.tasks.base.Task`)."""
        terms = label_terms(self.config, prediction, prepared)
        terms["noise"] = noise_term(self.config, prediction["noise"], prepared, progress)
        return terms
