"""EquiformerV2 (Liao, Wood, Das and Smidt, ICLR 2024), with DeNS where a head asks for noise.

The function is the published one for OC20 and OC22: equivariant graph attention on SO(2) convolutions, S2 activations,
separable layer norm, direct forces.  ``activation="gate"`` without ``grid_mlp``, an ``envelope``, a short cutoff and no
``max_neighbors`` make it exactly equivariant and smooth, which forces by gradient need.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from denskit.batch import Batch
from denskit.geometry.edge_frame import EdgeFrames
from denskit.geometry.order_major import order_major, pack_wigner
from denskit.models.base import Backbone, Features
from denskit.models.edge_chunks import at_targets, groups_of
from denskit.models.equiformer_v2.config import EquiformerV2Config
from denskit.models.equiformer_v2.layers import EdgeDegreeEmbedding, FeedForward, GraphAttention, PackedGraph
from denskit.models.execution import DEFAULT, Execution
from denskit.nn.cutoff import PolynomialEnvelope
from denskit.nn.dropout import EquivariantDropout, StochasticDepth
from denskit.nn.force_encoding import ForceEncoding
from denskit.nn.packed import PACKED_NORMS
from denskit.nn.radial import GaussianSmearing


@dataclass(frozen=True, kw_only=True)
class PackedFeatures(Features):
    """Features that are one tensor, of which ``nodes`` are views."""

    packed: Tensor  # [N, (l + 1)^2, C]
    graph: PackedGraph


def _attend(attention: GraphAttention, x: Tensor, graph: PackedGraph, degrees: tuple[int, ...]) -> Tensor:
    """``attention(x, graph, degrees)``, in groups of edges where the graph has them."""
    return at_targets(attention, lambda part, edges: [attention(*part, edges, degrees)], [x], graph, 1)[0]


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
        update = _attend(self.attention, self.norm_1(x), graph, degrees)
        x = x[:, : update.shape[1]] + self._drop(update, batch)
        return x + self._drop(self.feed_forward(self.norm_2(x), l_out), batch)

    def _drop(self, update: Tensor, batch: Batch) -> Tensor:
        (update,) = self.stochastic_depth([update], batch.system_index, batch.num_systems)
        return self.dropout([update])[0]


class EnergyHead(nn.Module):
    """A feed-forward network to one scalar: energies [N, 1], over the average number of atoms (not its root)."""

    def __init__(self, config: EquiformerV2Config) -> None:
        super().__init__()
        assert config.average_atoms is not None, "checked by EquiformerV2"
        self.feed_forward = FeedForward(config, 1)
        self.scale = 1 / config.average_atoms

    def forward(self, features: PackedFeatures) -> Tensor:
        """Scaled energies [N, 1] of the atoms."""
        return self.feed_forward(features.packed, 0)[:, 0] * self.scale  # type: ignore[no-any-return]


class VectorHead(nn.Module):
    """One more equivariant graph attention, to a single vector an atom: forces, and the paper's noise head."""

    def __init__(self, config: EquiformerV2Config) -> None:
        super().__init__()
        self.attention = GraphAttention(config, 1, 0.0)

    def forward(self, features: PackedFeatures) -> Tensor:
        """Vectors [N, 3]."""
        return _attend(self.attention, features.packed, features.graph, (1,))[:, :, 0]


class EquiformerV2(Backbone):
    """EquiformerV2 as a backbone: node features from a batch."""

    symmetry = "SO(3)"
    config: EquiformerV2Config

    def __init__(self, config: EquiformerV2Config, heads: dict[str, str], force_scale: float) -> None:
        super().__init__(config)
        if config.average_degree is None or config.average_atoms is None:
            raise ValueError("average_degree and average_atoms are measured when training starts; give numbers here")
        self.gauge_exact = not config.uses_grid
        self.smooth = self.gauge_exact and config.envelope and config.max_neighbors is None
        self.symmetric_sites = config.norm == "rms_norm"
        channels = config.channels
        self.atom_embedding = nn.Parameter(torch.randn(config.num_elements, channels))
        shared = config.atom_pairs == "shared"
        self.source_pairs = nn.Embedding(config.num_elements, config.edge_channels) if shared else None
        self.target_pairs = nn.Embedding(config.num_elements, config.edge_channels) if shared else None
        self.basis = GaussianSmearing(config.num_basis, config.cutoff)
        self.envelope = PolynomialEnvelope(config.cutoff) if config.envelope else None
        per_degree = [channels] * (config.l_max + 1)
        self.force_encoding = (
            ForceEncoding(per_degree, force_scale, config.initialisation) if "noise" in heads else None
        )
        self.edge_degree = EdgeDegreeEmbedding(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = PACKED_NORMS[config.norm](config.l_max, channels)

    def make_head(self, irreps: str) -> nn.Module:
        """A head on the features: "0" energies of atoms, "1" a vector an atom."""
        heads = {"0": EnergyHead, "1": VectorHead}
        if irreps not in heads:
            raise ValueError(f"EquiformerV2 has heads '0' and '1', not '{irreps}'")
        return heads[irreps](self.config)

    def forward(
        self,
        batch: Batch,
        force_input: Tensor | None = None,
        frames: EdgeFrames | None = None,
        l_out: int | None = None,
        execution: Execution = DEFAULT,
    ) -> PackedFeatures:
        """Features of the atoms of a batch whose neighbours are built.

        Args:
            batch: with edges.
            force_input: [N, 3] eV/Å, forces of corrupted atoms and zero elsewhere; None at inference.
            frames: edge frames to use instead of our own (tests).
            l_out: the highest degree wanted; default all.
            execution: how to compute.
        """
        graph = self._graph(batch, frames, execution)
        (x,) = at_targets(self.edge_degree, lambda _, part: [self.edge_degree(part)], [], graph, 1)
        x[:, 0] += self.atom_embedding[batch.atomic_numbers]
        if force_input is not None:
            assert self.force_encoding is not None, "this model has no noise head, so no force encoding"
            x = x + torch.cat(self.force_encoding(force_input), 1)
        for block in self.blocks[:-1]:
            x = self.run_block(block, x, graph, batch, self.config.l_max)
        top = 0 if l_out == 0 and self._scalars_see_scalars_only else self.config.l_max
        x = self.norm(self.run_block(self.blocks[-1], x, graph, batch, top))
        sizes = [2 * l + 1 for l in range(top + 1)]
        return PackedFeatures(nodes=list(x.split(sizes, 1)), packed=x, graph=graph, batch=batch)

    @property
    def _scalars_see_scalars_only(self) -> bool:
        """After the last attention scalars depend on scalars alone: no higher degrees are needed for an energy."""
        return self.config.norm != "rms_norm" and self.config.activation != "s2"

    def _graph(self, batch: Batch, frames: EdgeFrames | None, execution: Execution) -> PackedGraph:
        config = self.config
        frames = frames or self.frames_of(batch, config.l_max)
        source, target = batch.built_edges.index
        into = pack_wigner(frames.wigner, config.l_max, config.m_max)
        tables = None
        if self.source_pairs is not None and self.target_pairs is not None:
            tables = (self.source_pairs.weight, self.target_pairs.weight)
        return PackedGraph(
            frames=frames,
            basis=self.basis(frames.length),
            source=source,
            target=target,
            weight=self.edge_weight(batch, frames.length, self.envelope),
            enveloped=self.envelope is not None,
            num_atoms=batch.num_atoms,
            execution=execution,
            groups=groups_of(batch, execution.edge_chunk),
            into=into,
            back=into * _rescaling(config.l_max, config.m_max, into),
            source_elements=batch.atomic_numbers[source],
            target_elements=batch.atomic_numbers[target],
            pair_tables=tables,
        )


def _rescaling(l_max: int, m_max: int, like: Tensor) -> Tensor:
    """Factors [K, 1] on the way out of the frame: degrees that lost orders keep their norm on average."""
    factors = [((2 * l + 1) / (2 * min(l, m_max) + 1)) ** 0.5 for l, _, _ in order_major(l_max, m_max)]
    return like.new_tensor(factors)[:, None]
