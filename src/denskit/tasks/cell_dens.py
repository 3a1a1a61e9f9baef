"""Cell DeNS: DeNS for crystals, with noise on the cell and the stress encoded, beside noise on atoms and their forces.

The paper names the stress as a tensor of higher degree that could be encoded like forces.  For every structure that is
periodic in three directions and has a stress s, chosen with a probability:

1. Draw a symmetric strain e = (G + G^T) / 2, G_ij from N(0, 1), and deform positions and cell by 1 + sigma e.
2. Encode the virial per atom of the original structure, -s V / N, on every atom, as features of degrees 0 and 2.
3. Predict e, the original energy, and the original forces of the atoms that DeNS has not displaced.

Without its stress as an input the model could not tell which of many structures was strained: as for forces and noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from denskit.batch import Batch, Prepared, Targets, strained
from denskit.geometry.symmetric_matrices import coefficients_of
from denskit.random import Use, normal, uniform
from denskit.tasks.base import Term
from denskit.tasks.dens import DeNS, DeNSConfig
from denskit.tasks.losses import zero_unless


class CellDeNSConfig(DeNSConfig):
    """Settings of :class:`CellDeNS`, beside those of DeNS, which act on the noise of atoms."""

    name: Literal["cell_dens"] = "cell_dens"  # type: ignore[assignment]
    """Name of the task."""
    strain_probability: float = Field(default=0.25, ge=0, le=1)
    """Probability that a crystal is strained, independently of the noise on its atoms."""
    strain_sigma: float = Field(default=0.01, gt=0)
    """Standard deviation of the strains along the axes; of shears it is smaller by sqrt(2)."""
    strain_coefficient: float = Field(default=1.0, ge=0)
    """Weight of the strain term; it falls over the training as the weight of the noise does."""
    stress_encoding: bool = True
    """False: the model gets no stress of strained crystals (ablation)."""


class CellDeNS(DeNS):
    """Train on energy, forces and stress while denoising atoms and cells of some structures."""

    config: CellDeNSConfig

    @property
    def heads(self) -> dict[str, str]:
        """A noise vector for each atom, a symmetric strain for each structure."""
        return {**super().heads, "strain": "0+2"}

    def prepare(self, batch: Batch, targets: Targets, keys: Tensor, progress: float) -> Prepared:
        """Displace atoms as DeNS does, then strain some crystals (see :class:`denskit.tasks.base.Task`)."""
        chosen = uniform(keys, Use.CHOOSE_STRAIN) < self.config.strain_probability
        chosen = chosen & batch.denoise & batch.pbc.all(1) & targets.stress_mask  # [B]
        strain = zero_unless(chosen, _draw_strain(keys, batch.positions.dtype))
        prepared = super().prepare(batch, targets, keys, progress)
        encoded = chosen & self.config.stress_encoding
        virial = -targets.stress * (batch.cell.det().abs() / batch.n_atoms)[:, None, None]  # [B, 3, 3] eV an atom
        stress_input = coefficients_of(zero_unless(encoded, virial))[batch.system_index]
        return replace(
            prepared,
            batch=strained(prepared.batch, self.config.strain_sigma * strain),
            force_input=torch.cat([prepared.force_input, stress_input], 1),
            strain=strain,
            strain_mask=chosen,
        )

    def losses(self, prediction: Mapping[str, Tensor], prepared: Prepared, progress: float) -> dict[str, Term]:
        """Terms of DeNS and "strain" (see :class:`denskit.tasks.base.Task`)."""
        assert prepared.strain is not None and prepared.strain_mask is not None
        terms = super().losses(prediction, prepared, progress)
        form, scored = self.config.form, prepared.strain_mask
        difference = zero_unless(scored, prediction["strain"] - prepared.strain)
        sums = form.over_systems(form.size(difference.flatten(1)), scored=scored, existing=prepared.targets.stress_mask)
        terms["strain"] = Term(*sums, self.config.strain_coefficient * self.config.share_at(progress))
        return terms

    def _untouched(self, prepared: Prepared) -> Tensor:
        assert prepared.strain_mask is not None
        return super()._untouched(prepared) & ~prepared.strain_mask


def _draw_strain(keys: Tensor, dtype: torch.dtype) -> Tensor:
    """Symmetric matrices [B, 3, 3], without a preferred direction; diagonal elements have variance 1, others 1/2."""
    drawn = normal(keys[:, None], Use.STRAIN, torch.arange(9, device=keys.device), dtype=dtype).reshape(-1, 3, 3)
    return (drawn + drawn.mT) / 2
