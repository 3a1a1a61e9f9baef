"""AniDS: DeNS with noise whose covariance a second network learns (a successor of DeNS).

X. Liu et al., "Learning 3D Anisotropic Noise Distributions Improves Molecular Force Field Modeling", 2025.  DeNS's
algorithm with another noise.  A network reads the structure before the corruption, and of every corrupted atom i:

1. It gives a variance s_i > 0 and shares g_ij >= 0 of the neighbours, with a sum below 1.  In units of sigma^2 the
   covariance is S_i = s_i (1 - sum_j g_ij r_ij r_ij^T), r_ij the directions to the neighbours: positive definite, and
   small along bonds.
2. With S_i = L_i L_i^T the atom moves by sigma L_i n_i, n_i from N(0, I).  The target is s_i L_i^-T n_i: the score of
   the displacement, times s_i, and n_i where S_i is the identity.
3. A term holds the noise near DeNS's: the Kullback-Leibler divergence of N(0, S_i) from N(0, I), and the square of what
   the sum of the shares lacks to 0.3.

All terms train the network, also through the displaced positions.  docs/dens.md lists the differences from the
published trainings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from denskit.batch import Batch, Prepared, Targets
from denskit.models.base import Backbone
from denskit.models.config import ModelConfig
from denskit.nn.cutoff import PolynomialEnvelope
from denskit.nn.radial import GaussianSmearing
from denskit.tasks.base import Term
from denskit.tasks.dens import DeNS, DeNSConfig
from denskit.tasks.losses import zero_unless

_CHANNELS, _BASIS, _LAYERS = 64, 16, 2  # of the network
_FLOOR = 1e-6  # of a covariance, as published


class AniDSConfig(DeNSConfig):
    """Settings of :class:`AniDS`, beside those of DeNS."""

    name: Literal["anids"] = "anids"  # type: ignore[assignment]
    """Name of the task."""
    covariance_coefficient: float = Field(default=10.0, ge=0)
    """Weight of the term that holds the noise near that of DeNS (published: 1, with a network trained before)."""
    anisotropy: float = Field(default=0.3, ge=0, lt=1)
    """Sum of the shares of an atom's neighbours below which this term grows (published: 0.3)."""


class AniDS(DeNS):
    """Train on energy, forces and stress while denoising, and learn which noise to add."""

    config: AniDSConfig

    def network(self, model: ModelConfig) -> nn.Module:
        """The network of the covariances, which sees the model's edges."""
        return NoiseNetwork(model.cutoff, model.num_elements)

    def prepare(self, batch: Batch, targets: Targets, keys: Tensor, progress: float) -> Prepared:
        """Choose atoms and draw n; nothing moves before :meth:`corrupt`."""
        return replace(super().prepare(batch, targets, keys, progress), batch=replace(batch, edges=None))

    def corrupt(self, network: nn.Module, prepared: Prepared, progress: float) -> Prepared:
        """Displace the chosen atoms (see :class:`denskit.tasks.base.LearnedTask`)."""
        batch, drawn = prepared.batch, prepared.noise[..., None]
        variance, shares, covariance = network(batch)
        factor = torch.linalg.cholesky(covariance)  # [N, 3, 3], L
        displacement = self.config.sigma_of(batch, progress) * (factor @ drawn)[..., 0]
        score = torch.linalg.solve_triangular(factor.mT, drawn, upper=True)[..., 0]
        log_determinant = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
        divergence = (covariance.diagonal(dim1=1, dim2=2).sum(1) - 3 - log_determinant) / 2
        return replace(
            prepared,
            batch=replace(batch, positions=batch.positions + displacement, edges=None),
            noise=zero_unless(prepared.noise_mask, variance[:, None] * score),
            noise_penalty=divergence + (self.config.anisotropy - shares).clamp(min=0).square(),
        )

    def losses(self, prediction: Mapping[str, Tensor], prepared: Prepared, progress: float) -> dict[str, Term]:
        """Terms of DeNS and "covariance" (see :class:`denskit.tasks.base.Task`)."""
        terms = super().losses(prediction, prepared, progress)
        penalty = prepared.noise_penalty
        count = prepared.noise_mask.sum().to(prepared.noise.dtype)
        total = torch.zeros_like(count) if penalty is None else zero_unless(prepared.noise_mask, penalty).sum()
        return {**terms, "covariance": Term(total, count, self.config.covariance_coefficient)}


class NoiseNetwork(nn.Module):
    """Covariances of the noise of atoms, from elements and distances by message passing."""

    def __init__(self, cutoff: float, num_elements: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_elements, _CHANNELS)
        self.basis = GaussianSmearing(_BASIS, cutoff)
        self.envelope = PolynomialEnvelope(cutoff)
        self.messages = nn.ModuleList(_perceptron(2 * _CHANNELS + _BASIS, _CHANNELS) for _ in range(_LAYERS))
        self.variance, self.rest = _perceptron(_CHANNELS, 1), _perceptron(_CHANNELS, 1)
        self.pair = _perceptron(2 * _CHANNELS + _BASIS, 1)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Of a batch with edges: variances s [N], sums of the shares [N], covariances S [N, 3, 3]."""
        vectors, (source, target) = Backbone.edge_vectors(batch), batch.built_edges.index
        length = torch.linalg.vector_norm(vectors, dim=1)
        basis, weight = self.basis(length), self.envelope(length)
        near = torch.ones_like(batch.positions[:, 0]).index_add(0, target, weight)[:, None]
        x = self.embedding(batch.atomic_numbers)  # [N, C]
        for message in self.messages:
            sent = message(torch.cat([x[target], x[source], basis], 1)) * weight[:, None]
            x = x + torch.zeros_like(x).index_add(0, target, sent) / near
        variance = self.variance(x)[:, 0].exp()
        wanted = self.pair(torch.cat([x[target], x[source], basis], 1))[:, 0].exp() * weight
        total = self.rest(x)[:, 0].exp().index_add(0, target, wanted)
        share = wanted / total[target]  # [E]
        direction = vectors / length[:, None]
        outer = share[:, None, None] * direction[:, :, None] * direction[:, None, :]
        identity = torch.eye(3, dtype=x.dtype, device=x.device).expand(len(x), 3, 3)
        covariance = variance[:, None, None] * identity.index_add(0, target, -outer) + _FLOOR * identity
        return variance, torch.zeros_like(variance).index_add(0, target, share), covariance


def _perceptron(wide: int, out: int) -> nn.Sequential:
    """Two linear layers; the last begins at zero, so that training begins with isotropic sizes and equal shares."""
    last = nn.Linear(_CHANNELS, out)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(wide, _CHANNELS), nn.SiLU(), last)
