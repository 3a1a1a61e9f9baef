"""EquiformerV2 (Liao, Wood, Das and Smidt, ICLR 2024), with DeNS where a head asks for noise.

The function is the published one for OC20 and OC22: equivariant graph attention on SO(2) convolutions, S2 activations,
separable layer norm, direct forces.  ``activation="gate"`` without ``grid_mlp``, an ``envelope``, a short cutoff and no
``max_neighbors`` make it exactly equivariant and smooth, which forces by gradient need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from denskit.batch import Batch
from denskit.geometry.edge_frame import EdgeFrames
from denskit.geometry.so2_linear import order_major, pack_wigner
from denskit.geometry.so3 import Initialisation
from denskit.models.base import Backbone, Features, ModelConfig
from denskit.models.divided import at_targets, groups_of
from denskit.models.equiformer_v2_layers import (
    Activation,
    AttentionShape,
    EdgeDegreeEmbedding,
    FeedForward,
    GraphAttention,
    PackedGraph,
    PairEmbeddings,
    Shape,
)
from denskit.nn.cutoff import PolynomialEnvelope
from denskit.nn.dropout import EquivariantDropout, StochasticDepth
from denskit.nn.force_encoding import ForceEncoding
from denskit.nn.packed import PACKED_NORMS, PackedNormName
from denskit.nn.radial import GaussianSmearing


class EquiformerV2Config(ModelConfig):
    """EquiformerV2; the defaults are the paper's 83M model for OC20 S2EF-2M."""

    name: Literal["equiformer_v2"] = "equiformer_v2"
    cutoff: float = Field(12.0, gt=0, description="Å, radius of the neighbourhood")
    max_neighbors: int | None = Field(20, ge=1, description="keep only the nearest neighbours of each atom; not smooth")
    num_elements: int = Field(90, ge=1, le=119, description="atomic numbers 0 .. num_elements - 1 have an embedding")
    forces: Literal["gradient", "direct"] = Field(
        "direct", description="forces from -dE/dr or from a head of their own"
    )
    num_layers: int = Field(12, ge=1, description="attention blocks")
    l_max: int = Field(6, ge=1, le=6, description="highest degree of the features")
    m_max: int = Field(2, ge=1, description="highest order kept in the edge frame")
    channels: int = Field(128, ge=2, description="channels of each degree between the blocks")
    hidden_channels: int = Field(64, ge=1, description="channels of the messages inside the attention")
    num_heads: int = Field(8, ge=1, description="attention heads")
    alpha_channels: int = Field(64, ge=1, description="channels of one head's attention logits")
    value_channels: int = Field(16, ge=1, description="channels of one head's values")
    ffn_channels: int = Field(128, ge=1, description="channels inside the feed-forward networks")
    edge_channels: int = Field(128, ge=1, description="hidden width of the radial functions")
    num_basis: int = Field(600, ge=2, description="Gaussians of the distance, two spacings wide")
    atom_pairs: PairEmbeddings = Field(
        "own", description="embeddings of both elements in radial functions: own ones, shared by all, or none"
    )
    norm: PackedNormName = Field("separable_layer_norm", description="normalisation of node features")
    activation: Activation = Field("separable_s2", description="nonlinearity of messages; only gate is exact")
    grid_mlp: bool = Field(True, description="feed-forward networks work at points of the sphere")
    grid_resolution: int = Field(18, ge=2, description="latitudes and longitudes of the sphere's points; even")
    attention_renormalisation: bool = Field(True, description="layer norm of the attention logits")
    initialisation: Initialisation = Field("uniform", description="distribution of the initial weights")
    envelope: bool = Field(False, description="smooth at the cutoff (the published model is not)")
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="dropout of attention weights in the blocks")
    projection_dropout: float = Field(0.0, ge=0, lt=1, description="equivariant dropout of each block's outputs")
    stochastic_depth: float = Field(0.05, ge=0, lt=1, description="probability of dropping a block for a structure")
    average_degree: float | None = Field(
        23.395238876342773, gt=0, description="usual number of neighbours; published: IS2RE's; null: measured"
    )
    average_atoms: float | None = Field(
        77.81317, gt=0, description="usual number of atoms; published: IS2RE's; null: measured by training"
    )

    @model_validator(mode="after")
    def _sizes_fit(self) -> EquiformerV2Config:
        if self.m_max > self.l_max:
            raise ValueError(f"m_max={self.m_max} is above l_max={self.l_max}")
        if self.uses_grid and (self.grid_resolution % 2 or self.grid_resolution <= 2 * self.l_max):
            raise ValueError(
                f"grid_resolution={self.grid_resolution}: l_max={self.l_max} wants an even number of at least "
                f"{2 * self.l_max + 2}"
            )
        return self

    @property
    def uses_grid(self) -> bool:
        """Functions are sampled at points of the sphere, so that rotations are exact up to a sampling error only."""
        return self.activation != "gate" or self.grid_mlp


@dataclass(frozen=True, kw_only=True)
class PackedFeatures(Features):
    """Features that are one tensor, of which ``nodes`` are views."""

    packed: Tensor  # [N, (l + 1)^2, C]
    graph: PackedGraph


def _shape(config: EquiformerV2Config) -> Shape:
    return Shape(
        l_max=config.l_max,
        m_max=config.m_max,
        channels=config.channels,
        edge_channels=config.edge_channels,
        num_basis=config.num_basis,
        num_elements=config.num_elements,
        pairs=config.atom_pairs,
        activation=config.activation,
        grid_mlp=config.grid_mlp,
        resolution=config.grid_resolution,
        initialisation=config.initialisation,
    )


def _attention(config: EquiformerV2Config, channels_out: int, dropout: float) -> GraphAttention:
    attention = AttentionShape(
        hidden=config.hidden_channels,
        heads=config.num_heads,
        alpha=config.alpha_channels,
        value=config.value_channels,
        out=channels_out,
        renormalise=config.attention_renormalisation,
        dropout=dropout,
    )
    return GraphAttention(_shape(config), attention)


def _attend(attention: GraphAttention, x: Tensor, graph: PackedGraph, degrees: tuple[int, ...]) -> Tensor:
    """``attention(x, graph, degrees)``, in groups of edges where the graph has them."""
    return at_targets(attention, lambda part, edges: [attention(*part, edges, degrees)], [x], graph, 1)[0]


class Block(nn.Module):
    """Pre-norm transformer block: attention, then feed-forward, each with a residual."""

    def __init__(self, config: EquiformerV2Config) -> None:
        super().__init__()
        norm = PACKED_NORMS[config.norm]
        self.norm_1 = norm(config.l_max, config.channels)
        self.attention = _attention(config, config.channels, config.attention_dropout)
        self.norm_2 = norm(config.l_max, config.channels)
        self.feed_forward = FeedForward(_shape(config), config.ffn_channels, config.channels)
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
        self.feed_forward = FeedForward(_shape(config), config.ffn_channels, 1)
        self.scale = 1 / config.average_atoms

    def forward(self, features: PackedFeatures) -> Tensor:
        """Scaled energies [N, 1] of the atoms."""
        return self.feed_forward(features.packed, 0)[:, 0] * self.scale  # type: ignore[no-any-return]


class VectorHead(nn.Module):
    """One more equivariant graph attention, to a single vector an atom: forces, and the paper's noise head."""

    def __init__(self, config: EquiformerV2Config) -> None:
        super().__init__()
        self.attention = _attention(config, 1, 0.0)

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
        channels, shape = config.channels, _shape(config)
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
        self.edge_degree = EdgeDegreeEmbedding(shape, config.average_degree)
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
    ) -> PackedFeatures:
        """Features of the atoms of a batch whose neighbours are built.

        Args:
            batch: with edges.
            force_input: [N, 3] eV/Å, forces of corrupted atoms and zero elsewhere; None at inference.
            frames: edge frames to use instead of our own (tests).
            l_out: the highest degree wanted; default all.
        """
        graph = self._graph(batch, frames)
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

    def _graph(self, batch: Batch, frames: EdgeFrames | None) -> PackedGraph:
        assert batch.edge_index is not None, "build neighbours first"
        config = self.config
        frames = frames or self.frames_of(batch, config.l_max)
        source, target = batch.edge_index
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
            groups=groups_of(batch, self.edge_chunk),
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
