"""EquiformerV2 (Liao, Wood, Das and Smidt, ICLR 2024), with DeNS.

The function is the published one for OC20 and OC22: equivariant graph attention on SO(2) convolutions, S2 activations,
separable layer norm, direct forces.  ``activation="gate"`` without ``grid_mlp``, an ``envelope``, a short cutoff and no
``max_neighbors`` make it exactly equivariant and smooth, as gradient forces require.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from denskit.batch import Batch
from denskit.models.equiformer_v2.config import EquiformerV2Config
from denskit.models.equiformer_v2.layers import FeedForward, GraphAttention
from denskit.models.packed import PackedBackbone, PackedFeatures, PackedGraph, VectorHead, attend
from denskit.nn.cutoff import PolynomialEnvelope
from denskit.nn.dropout import EquivariantDropout, StochasticDepth
from denskit.nn.packed import PACKED_NORMS
from denskit.nn.radial import GaussianSmearing


class Block(nn.Module):
    """Pre-norm transformer block: attention, then feed-forward, each with a residual."""

    def __init__(self, config: EquiformerV2Config) -> None:
        super().__init__()
        norm = PACKED_NORMS[config.norm]
        self.norm_1 = norm(config.l_max, config.channels)
        self.attention = GraphAttention(config, config.channels, config.attention_dropout)
        self.norm_2 = norm(config.l_max, config.channels)
        self.feed_forward = FeedForward(config, config.channels)
        self.stochastic_depth = StochasticDepth(config.stochastic_depth)
        self.dropout = EquivariantDropout(config.projection_dropout)
        self.degrees = tuple(range(config.l_max + 1))

    def forward(self, x: Tensor, graph: PackedGraph, batch: Batch, l_out: int) -> Tensor:
        """Packed x [N, (l_max + 1)^2, C] to packed features up to l_out (0 or l_max)."""
        degrees = self.degrees[: l_out + 1]
        update = attend(self.attention, self.norm_1(x), graph, degrees)
        x = x[:, : update.shape[1]] + self._drop(update, batch)
        return x + self._drop(self.feed_forward(self.norm_2(x), l_out), batch)

    def _drop(self, update: Tensor, batch: Batch) -> Tensor:
        (update,) = self.stochastic_depth([update], batch.system_index, batch.num_systems)
        return self.dropout([update])[0]


class EnergyHead(nn.Module):
    """A feed-forward network to energies [N, 1], divided by the average number of atoms (not its square root)."""

    def __init__(self, config: EquiformerV2Config) -> None:
        super().__init__()
        assert config.average_atoms is not None, "checked by Backbone"
        self.feed_forward = FeedForward(config, 1)
        self.scale = 1 / config.average_atoms

    def forward(self, features: PackedFeatures) -> Tensor:
        """Scaled energies [N, 1] of the atoms."""
        return self.feed_forward(features.packed, 0)[:, 0] * self.scale  # type: ignore[no-any-return]


def _vector_head(config: EquiformerV2Config) -> VectorHead:
    return VectorHead(GraphAttention(config, 1, 0.0))


class EquiformerV2(PackedBackbone):
    """EquiformerV2 as a backbone, with DeNS's force encoding when there is a noise head."""

    head_types: ClassVar = {"0": EnergyHead, "1": _vector_head}
    config: EquiformerV2Config

    def __init__(self, config: EquiformerV2Config, heads: dict[str, str], force_input_scale: float) -> None:
        super().__init__(config, heads, force_input_scale, config.initialisation)
        self.gauge_exact = not config.uses_grid
        self.symmetric_sites = config.norm == "rms_norm"
        self.basis = GaussianSmearing(config.num_basis, config.cutoff)
        self.envelope = PolynomialEnvelope(config.cutoff) if config.envelope else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = PACKED_NORMS[config.norm](config.l_max, config.channels)

    def run_blocks(self, x: Tensor, graph: PackedGraph, batch: Batch, l_out: int | None) -> Tensor:
        """The last block gives scalars alone where only they are wanted and they depend on no higher degree."""
        for block in self.blocks[:-1]:
            x = self.run_block(block, x, graph, batch, self.config.l_max)
        apart = self.config.norm != "rms_norm" and self.config.activation != "s2"
        top = 0 if l_out == 0 and apart else self.config.l_max
        return self.run_block(self.blocks[-1], x, graph, batch, top)  # type: ignore[no-any-return]
