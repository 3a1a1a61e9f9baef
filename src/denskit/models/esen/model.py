"""eSEN (Fu et al. 2025, "Learning smooth and expressive interatomic potentials"), with DeNS.

Messages are two SO(2) convolutions with gates between, weighted by an envelope and summed without attention.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denskit.batch import Batch
from denskit.geometry.order_major import order_major
from denskit.models.edge_chunks import at_targets
from denskit.models.esen.config import ESENConfig
from denskit.models.packed import (
    PACKED_BASES,
    Gate,
    PackedBackbone,
    PackedFeatures,
    PackedGraph,
    RadialFunction,
    convolve_ends,
    weigh_and_sum_packed,
)
from denskit.nn.cutoff import PolynomialEnvelope
from denskit.nn.packed import PackedLinear, RMSNorm
from denskit.nn.s2_activation import cast_grid, s2_silu
from denskit.nn.so2_linear import SO2Linear


class Edgewise(nn.Module):
    """Messages: radial factors, SO(2) convolution, gate, SO(2) convolution; weighted by the envelope and summed."""

    def __init__(self, config: ESENConfig) -> None:
        super().__init__()
        l_max, m_max, hidden = config.l_max, config.m_max, config.hidden_channels
        self.first = SO2Linear(
            l_max, m_max, 2 * config.channels, hidden, extra=l_max * hidden, parity=config.parity, init="uniform"
        )
        self.radial = RadialFunction(config, self.first.num_factors)
        self.gate = Gate([l for l, _, _ in order_major(l_max, m_max)])
        self.second = SO2Linear(l_max, m_max, hidden, config.channels, parity=config.parity, init="uniform")

    def forward(self, x: Tensor, graph: PackedGraph) -> Tensor:
        """Packed x [N, (l_max + 1)^2, C] to the same shape."""
        values, _ = self.second(self.gate(*convolve_ends(x, graph, self.radial, self.first)))
        weights = values.new_ones(values.shape[0]) if graph.weight is None else graph.weight
        return weigh_and_sum_packed(graph, graph.back, values, weights[:, None])


class SpectralAtomwise(nn.Module):
    """Linear, gate, linear on each atom; the gates pass a SiLU and then a sigmoid, as published."""

    def __init__(self, config: ESENConfig) -> None:
        super().__init__()
        l_max, hidden = config.l_max, config.hidden_channels
        self.first = PackedLinear(l_max, config.channels, hidden, "uniform")
        self.gates = nn.Linear(config.channels, l_max * hidden)
        self.gate = Gate([l for l in range(l_max + 1) for _ in range(2 * l + 1)])
        self.second = PackedLinear(l_max, hidden, config.channels, "uniform")

    def forward(self, x: Tensor) -> Tensor:
        """Packed x [N, (l_max + 1)^2, C] to the same shape."""
        return self.second(self.gate(self.first(x), F.silu(self.gates(x[:, 0]))))  # type: ignore[no-any-return]


class GridAtomwise(nn.Module):
    """An MLP of three layers without biases at points of the sphere; its outer layers act on the coefficients."""

    def __init__(self, config: ESENConfig) -> None:
        super().__init__()
        hidden = config.hidden_channels
        self.first = nn.Linear(config.channels, hidden, bias=False)
        self.inner = nn.Linear(hidden, hidden, bias=False)
        self.last = nn.Linear(hidden, config.channels, bias=False)
        points = (2 * (config.l_max + 1), 2 * (config.l_max + 1) + 1)
        self.key = (config.l_max, config.l_max, points, "integral", False)

    def forward(self, x: Tensor) -> Tensor:
        """Packed x [N, (l_max + 1)^2, C] to the same shape."""
        to_grid, from_grid = cast_grid(*self.key, x.dtype, x.device)  # type: ignore[arg-type]
        return self.last(s2_silu(self.first(x), to_grid, from_grid, self.inner.weight))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Messages, then a network of single atoms, each on normed features and with a residual."""

    def __init__(self, config: ESENConfig) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(config.l_max, config.channels)
        self.edgewise = Edgewise(config)
        self.norm_2 = RMSNorm(config.l_max, config.channels)
        self.atomwise = SpectralAtomwise(config) if config.atomwise == "spectral" else GridAtomwise(config)

    def forward(self, x: Tensor, graph: PackedGraph) -> Tensor:
        """Packed x [N, (l_max + 1)^2, C] to the same shape."""
        edgewise = self.edgewise
        (update,) = at_targets(edgewise, lambda part, edges: [edgewise(*part, edges)], [self.norm_1(x)], graph, 1)
        x = x + update
        return x + self.atomwise(self.norm_2(x))  # type: ignore[no-any-return]


class EnergyHead(nn.Module):
    """An MLP of three layers on the scalars."""

    def __init__(self, config: ESENConfig) -> None:
        super().__init__()
        hidden = config.hidden_channels
        layers = (nn.Linear(config.channels, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.mlp = nn.Sequential(*layers, nn.Linear(hidden, 1))

    def forward(self, features: PackedFeatures) -> Tensor:
        """Energies [N, 1] of the atoms."""
        return self.mlp(features.packed[:, 0])  # type: ignore[no-any-return]


class VectorHead(nn.Module):
    """A linear map of the vectors: forces, and the noise of DeNS."""

    def __init__(self, config: ESENConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.channels, 1, bias=False)

    def forward(self, features: PackedFeatures) -> Tensor:
        """Vectors [N, 3]."""
        return self.linear(features.packed[:, 1:4])[:, :, 0]  # type: ignore[no-any-return]


class StressHead(nn.Module):
    """A linear map of the degrees 0 and 2.

    The published direct stress head (``esen_rank2_head``) is not equivariant: biases and SiLUs act on the components of
    degree 2.
    """

    def __init__(self, config: ESENConfig) -> None:
        super().__init__()
        self.linear = PackedLinear(config.l_max, config.channels, 1, "uniform")

    def forward(self, features: PackedFeatures) -> Tensor:
        """Coefficients [N, 6] of degrees 0 and 2 (m = -2..2)."""
        kept = torch.cat((features.packed[:, :1], features.packed[:, 4:9]), 1)
        return self.linear(kept, (0, 2))[:, :, 0]  # type: ignore[no-any-return]


class ESEN(PackedBackbone):
    """eSEN as a backbone: node features from a batch."""

    rescaled = False
    head_types: ClassVar = {"0": EnergyHead, "1": VectorHead, "0+2": StressHead}
    config: ESENConfig

    def __init__(self, config: ESENConfig, heads: dict[str, str], force_input_scale: float) -> None:
        super().__init__(config, heads, force_input_scale, "uniform")
        self.gauge_exact = config.atomwise == "spectral"
        assert self.source_pairs is not None and self.target_pairs is not None
        for table in (self.source_pairs, self.target_pairs):
            nn.init.uniform_(table.weight, -0.001, 0.001)
        self.basis = PACKED_BASES[config.radial_basis](config.num_basis, config.cutoff)
        self.envelope = PolynomialEnvelope(config.cutoff, exponent=5) if config.envelope else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.l_max, config.channels)

    def run_blocks(self, x: Tensor, graph: PackedGraph, batch: Batch, l_out: int | None) -> Tensor:
        """All degrees, whatever is wanted."""
        for block in self.blocks:
            x = self.run_block(block, x, graph)
        return x
