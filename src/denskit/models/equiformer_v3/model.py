"""EquiformerV3, with DeNS where a head asks for noise.

Against EquiformerV2: a norm with one scale for all degrees, products instead of SiLUs at points of the sphere, wide
feed-forward networks, an envelope in the softmax, messages and degree embedding.  With ``swiglu_s2`` and enough points
the model is equivariant to rounding and independent of the edge frames, also under derivatives.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denskit.batch import Batch
from denskit.models.equiformer_v3.config import EquiformerV3Config
from denskit.models.equiformer_v3.layers import FeedForward, GraphAttention
from denskit.models.packed import (
    PACKED_BASES,
    Gate,
    PackedBackbone,
    PackedFeatures,
    PackedGraph,
    VectorHead,
    attend,
    linear,
)
from denskit.nn.cutoff import PolynomialEnvelope
from denskit.nn.dropout import StochasticDepth
from denskit.nn.packed import PACKED_NORMS, PackedLinear, PackedNorm, PlainRMSNorm

NORMS: dict[str, type[PackedNorm]] = {
    "merged_layer_norm": PACKED_NORMS["rms_norm"],
    "merged_rms_norm": PlainRMSNorm,
    "separable_layer_norm": PACKED_NORMS["separable_layer_norm"],
}


class Block(nn.Module):
    """Pre-norm transformer block: attention, then feed-forward network, each with a residual."""

    def __init__(self, config: EquiformerV3Config) -> None:
        super().__init__()
        norm = NORMS[config.norm]
        self.norm_1 = norm(config.l_max, config.channels)
        self.attention = GraphAttention(config, config.channels, config.attention_dropout)
        self.norm_2 = norm(config.l_max, config.channels)
        self.feed_forward = FeedForward(config, config.channels)
        self.stochastic_depth = StochasticDepth(config.stochastic_depth)
        self.degrees = tuple(range(config.l_max + 1))

    def forward(self, x: Tensor, graph: PackedGraph, batch: Batch) -> Tensor:
        """Packed x [N, (l_max + 1)^2, C] to the same shape."""
        x = x + self._drop(attend(self.attention, self.norm_1(x), graph, self.degrees), batch)
        return x + self._drop(self.feed_forward(self.norm_2(x)), batch)

    def _drop(self, update: Tensor, batch: Batch) -> Tensor:
        return self.stochastic_depth([update], batch.system_index, batch.num_systems)[0]  # type: ignore[no-any-return]


class EnergyHead(nn.Module):
    """Linear, SiLU, linear on the scalars: energies [N, 1], over the average number of atoms."""

    def __init__(self, config: EquiformerV3Config) -> None:
        super().__init__()
        assert config.average_atoms is not None, "checked by Backbone"
        self.first = linear(config.channels, config.ffn_channels)
        self.second = linear(config.ffn_channels, 1)
        self.scale = 1 / config.average_atoms

    def forward(self, features: PackedFeatures) -> Tensor:
        """Scaled energies [N, 1] of the atoms."""
        return self.second(F.silu(self.first(features.packed[:, 0]))) * self.scale  # type: ignore[no-any-return]


def _vector_head(config: EquiformerV3Config) -> VectorHead:
    return VectorHead(GraphAttention(config, 1, 0.0, gate=config.gate_force_head))


class StressHead(nn.Module):
    """A feed-forward network with gates to one symmetric matrix an atom, of degrees 0 and 2."""

    def __init__(self, config: EquiformerV3Config) -> None:
        super().__init__()
        l_max, hidden = config.l_max, config.ffn_channels
        self.first = PackedLinear(l_max, config.channels, hidden, "uniform")
        self.gates = linear(config.channels, l_max * hidden)
        self.gate = Gate([l for l in range(l_max + 1) for _ in range(2 * l + 1)])
        self.second = PackedLinear(l_max, hidden, 1, "uniform")

    def forward(self, features: PackedFeatures) -> Tensor:
        """Coefficients [N, 6] of degrees 0 and 2 (m = -2..2)."""
        x = features.packed
        activated = self.gate(self.first(x), self.gates(x[:, 0]))
        kept = torch.cat((activated[:, :1], activated[:, 4:9]), 1)
        return self.second(kept, (0, 2))[:, :, 0]  # type: ignore[no-any-return]


class EquiformerV3(PackedBackbone):
    """EquiformerV3 as a backbone: node features from a batch."""

    decays_embeddings = False
    force_bias = True
    head_types: ClassVar = {"0": EnergyHead, "1": _vector_head, "0+2": StressHead}
    config: EquiformerV3Config

    def __init__(self, config: EquiformerV3Config, heads: dict[str, str], force_input_scale: float) -> None:
        super().__init__(config, heads, force_input_scale, "uniform")
        self.gauge_exact = config.exact
        self.symmetric_sites = config.norm != "separable_layer_norm"
        self.basis = PACKED_BASES[config.radial_basis](config.num_basis, config.cutoff)
        self.envelope = PolynomialEnvelope(config.cutoff, exponent=5) if config.envelope else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = NORMS[config.norm](config.l_max, config.channels)

    def run_blocks(self, x: Tensor, graph: PackedGraph, batch: Batch, l_out: int | None) -> Tensor:
        """All degrees, whatever is wanted: the norm mixes their scales."""
        for block in self.blocks:
            x = self.run_block(block, x, graph, batch)
        return x
