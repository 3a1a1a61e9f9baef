"""Models on packed features [N, (l_max + 1)^2, C] with SO(2) convolutions in the edge frame: EquiformerV2, V3 and eSEN.

Their graph, radial functions, degree embedding, gate, and the part of the backbone before the blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denskit.batch import Batch
from denskit.geometry.edge_ends import gather_ends
from denskit.geometry.edge_frame import EdgeFrames
from denskit.geometry.operations import reordered, traced
from denskit.geometry.order_major import order_major, pack_wigner, rows_of_degrees
from denskit.geometry.so2 import spread
from denskit.geometry.so2_messages import MessageEdges, orders, rotate_and_convolve, weigh_and_sum
from denskit.models.base import Backbone, Features
from denskit.models.config import PackedModelConfig
from denskit.models.edge_chunks import at_targets, chunks_of
from denskit.models.execution import DEFAULT, Execution
from denskit.models.graph import EdgeGraph
from denskit.nn.activation import smooth_leaky_relu
from denskit.nn.attention import SINK, edge_softmax
from denskit.nn.covalent_origins import CovalentOrigins
from denskit.nn.force_encoding import ForceEncoding
from denskit.nn.packed import PackedLinear, orders_of
from denskit.nn.radial import BesselBasis, ExponentialNormalBasis, GaussianSmearing
from denskit.nn.so2_linear import SO2Linear
from denskit.nn.so3_linear import Initialisation
from denskit.nn.weight_decay import LayerNorm


@dataclass(frozen=True, kw_only=True)
class PackedGraph(EdgeGraph):
    """Edges with the matrices from packed node features to order-major edge features and back."""

    into: Tensor  # [E, K, (l_max + 1)^2]
    back: Tensor  # [E, K, (l_max + 1)^2], its transpose rotates back, with the published factors of degrees l > m_max
    source_elements: Tensor  # [E] atomic numbers
    target_elements: Tensor  # [E]
    pair_tables: tuple[Tensor, Tensor] | None  # [num_elements, edge_channels] each, where all blocks share them

    @property
    def in_one_piece(self) -> bool:
        """Messages as plain operations instead of chunks: where frames are differentiated, and for compilers."""
        return self.into.requires_grad or traced()

    def back_of(self, l_max: int, m_max: int, degrees: tuple[int, ...]) -> Tensor:
        """The part of ``back`` [E, K', sum of 2l + 1] for some degrees."""
        if len(degrees) == l_max + 1:
            return self.back
        rows = rows_of_degrees(l_max, m_max, degrees)
        columns = [l * l + k for l in degrees for k in range(2 * l + 1)]
        return reordered(reordered(self.back, 1, rows), 2, columns)

    def edges(self, matrix: Tensor) -> MessageEdges:
        """Edges for messages in chunks, with ``into`` or a part of ``back``."""
        return MessageEdges(self.source, self.target, matrix, self.num_atoms)


@dataclass(frozen=True, kw_only=True)
class PackedFeatures(Features):
    """Features as one tensor; ``nodes`` are views of it."""

    packed: Tensor  # [N, (l + 1)^2, C]
    graph: PackedGraph


def pair_table(num_elements: int, width: int) -> nn.Embedding:
    """An embedding of the element at one end of an edge, near zero at first."""
    table = nn.Embedding(num_elements, width)
    nn.init.uniform_(table.weight, -0.001, 0.001)
    return table


class RadialFunction(nn.Module):
    """MLP with layer norms on the radial basis and embeddings of the elements at both ends: [E, num_out].

    The first layer acts on the three parts side by side, as published; for element embeddings it is evaluated once per
    element.
    """

    def __init__(self, config: PackedModelConfig, num_out: int) -> None:
        super().__init__()
        width, pairs = config.edge_channels, 0 if config.atom_pairs == "none" else 2
        own = config.atom_pairs == "own"
        self.source = pair_table(config.num_elements, width) if own else None
        self.target = pair_table(config.num_elements, width) if own else None
        self.sizes = [config.num_basis] + [width] * pairs
        self.first = linear(sum(self.sizes), width)
        self.first_norm = LayerNorm(width)
        self.second = linear(width, width)
        self.second_norm = LayerNorm(width)
        self.output = linear(width, num_out)

    def hidden(self, graph: PackedGraph) -> Tensor:
        """Input [E, edge_channels] of the output layer."""
        tables = graph.pair_tables
        if self.source is not None and self.target is not None:
            tables = (self.source.weight, self.target.weight)
        weights = self.first.weight.split(self.sizes, 1)
        x = F.linear(graph.basis, weights[0], self.first.bias)
        if tables is not None:
            x = x + (tables[0] @ weights[1].T).index_select(0, graph.source_elements)
            x = x + (tables[1] @ weights[2].T).index_select(0, graph.target_elements)
        x = F.silu(self.first_norm(x))
        return F.silu(self.second_norm(self.second(x)))

    def forward(self, graph: PackedGraph) -> Tensor:
        """Radial basis and elements of the edges to [E, num_out]."""
        return self.output(self.hidden(graph))  # type: ignore[no-any-return]


def linear(width_in: int, width_out: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer with torch's uniform weights in ±1 / sqrt(width_in), in every initialisation; biases zero."""
    layer = nn.Linear(width_in, width_out, bias=bias)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class EdgeDegreeEmbedding(nn.Module):
    """Sum over neighbours of radial functions times spherical harmonics, over the average degree (not its root)."""

    def __init__(self, config: PackedModelConfig) -> None:
        super().__init__()
        assert config.average_degree is not None, "checked by Backbone"
        self.degrees, self.channels = config.l_max + 1, config.channels
        self.radial = RadialFunction(config, self.degrees * config.channels)
        self.scale = 1 / config.average_degree

    def forward(self, graph: PackedGraph) -> Tensor:
        """Packed features [N, (l_max + 1)^2, C]."""
        values = self.radial(graph).unflatten(1, (self.degrees, self.channels))
        weights = values.new_ones(values.shape[0]) if graph.weight is None else graph.weight
        back = graph.back[:, : self.degrees]  # the rows of m = 0
        return weigh_and_sum_packed(graph, back, values, weights[:, None]) * self.scale


class Gate(nn.Module):
    """SiLU on the scalars; a sigmoid of a scalar for each degree and channel multiplies the rest."""

    index: Tensor

    def __init__(self, degrees: list[int]) -> None:
        """``degrees``: of each row of the features; the scalars' row comes first."""
        super().__init__()
        self.register_buffer("index", torch.tensor(degrees[1:]) - 1, persistent=False)
        self.num_degrees = max(degrees)

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        """Features x [N, rows, C], gates [N, l_max C] ordered by degree."""
        gates = torch.sigmoid(gates).unflatten(1, (self.num_degrees, -1)).index_select(1, self.index)
        scalars, rest = x.split([1, x.shape[1] - 1], 1)  # slices would allocate the whole tensor in the backward pass
        return torch.cat((F.silu(scalars), rest * gates), 1)


def weigh_and_sum_packed(graph: PackedGraph, back: Tensor, values: Tensor, weights: Tensor) -> Tensor:
    """Weight values [E, K', H C] by [E, H], rotate them back, sum them at the targets: [N, rows, H C]."""
    if not graph.in_one_piece:
        return weigh_and_sum(graph.edges(back), values, weights)
    weighted = values.unflatten(2, (weights.shape[1], -1)) * weights[:, None, :, None]
    return graph.sum_over_edges(back.mT @ weighted.flatten(2))


def convolve_ends(
    x: Tensor, graph: PackedGraph, radial: RadialFunction, convolution: SO2Linear, *, shared: bool = False
) -> tuple[Tensor, Tensor]:
    """Rotate the features of both ends of each edge into its frame, multiply by radial factors, convolve.

    x: packed features [N, (l_max + 1)^2, C]; the convolution has 2 C channels, the ends side by side.  There is one
    factor for each |m|, degree, end and channel, or, ``shared``, one for all orders.  Returns messages [E, K, C_out] in
    the edge frames and the extra scalars [E, extra].
    """
    if graph.in_one_piece:
        ends = gather_ends(x, graph.source, graph.target)
        return convolution(graph.into @ ends, radial(graph), shared=shared)  # type: ignore[no-any-return]
    layout = orders(convolution.l_max, convolution.m_max, shared=shared)
    inputs = (x, radial.hidden(graph), radial.output.weight, radial.output.bias, convolution.bias)
    out = rotate_and_convolve(graph.edges(graph.into), layout, *inputs, convolution.matrices())
    scalars, message = out.split([convolution.extra, out.shape[1] - convolution.extra], 1)
    return message.unflatten(1, (-1, convolution.channels_out)), scalars


class PackedAttention(nn.Module, ABC):
    """Equivariant graph attention: two SO(2) convolutions with an activation between, MLP logits, values summed.

    A subclass sets the layers below in ``__init__``.
    """

    first: SO2Linear  # its extra scalars: logits, then those of the activation
    activation: nn.Module
    second: SO2Linear
    logit_norm: nn.Module
    attention_vector: nn.Parameter  # [heads, alpha_channels]
    dropout: nn.Module
    projection: PackedLinear
    softcap: float | None = None  # logits z become c tanh(z / c)
    sink = SINK

    @abstractmethod
    def message(self, x: Tensor, graph: PackedGraph) -> tuple[Tensor, Tensor]:
        """Messages [E, K, C'] in the edge frames and scalars [E, extra]: the first convolution."""

    def forward(self, x: Tensor, graph: PackedGraph, degrees: tuple[int, ...]) -> Tensor:
        """Packed x [N, (l_max + 1)^2, C] to the rows of some degrees, [N, sum of 2l + 1, C_out]."""
        message, scalars = self.message(x, graph)
        width = self.attention_vector.numel()
        logits, scalars = scalars.split([width, scalars.shape[1] - width], -1)
        l_max, m_max = self.first.l_max, self.first.m_max
        wanted = None if len(degrees) == l_max + 1 else degrees
        values, _ = self.second(self.activation(message, scalars), degrees=wanted)
        back = graph.back_of(l_max, m_max, degrees)
        summed = weigh_and_sum_packed(graph, back, values, self._attention(logits, graph))
        return self.projection(summed, degrees)  # type: ignore[no-any-return]

    def _attention(self, logits: Tensor, graph: PackedGraph) -> Tensor:
        """Weights [E, H] of the edges into each atom."""
        heads = smooth_leaky_relu(self.logit_norm(logits.unflatten(-1, self.attention_vector.shape)), scale=1.0)
        scores = (heads * self.attention_vector).sum(-1)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        weights = edge_softmax(
            scores, graph.target, graph.num_atoms, graph.weight, smooth=graph.enveloped, sink=self.sink
        )
        return self.dropout(weights)  # type: ignore[no-any-return]


def attend(attention: PackedAttention, x: Tensor, graph: PackedGraph, degrees: tuple[int, ...]) -> Tensor:
    """``attention(x, graph, degrees)``, in chunks of edges where the graph has them."""
    return at_targets(attention, lambda part, edges: [attention(*part, edges, degrees)], [x], graph, 1)[0]


class VectorHead(nn.Module):
    """One more attention with one output vector per atom: forces and noise."""

    def __init__(self, attention: PackedAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, features: PackedFeatures) -> Tensor:
        """Vectors [N, 3]."""
        return attend(self.attention, features.packed, features.graph, (1,))[:, :, 0]


def rescaling(l_max: int, m_max: int, like: Tensor) -> Tensor:
    """Factors [K, 1] on the way out of the frame: degrees with truncated orders keep their average norm."""
    factors = tuple(((2 * l + 1) / (2 * min(l, m_max) + 1)) ** 0.5 for l, _, _ in order_major(l_max, m_max))
    return spread(factors, (1,) * len(factors), like.device, like.dtype)[:, None]


PACKED_BASES = {
    "gaussian": GaussianSmearing, "bessel": BesselBasis, "exponential_normal": ExponentialNormalBasis
}  # fmt: skip


class PackedBackbone(Backbone):
    """The part that the backbones share: atom, degree and force embedding, the graph, the order of the layers.

    A subclass sets the layers below, and ``envelope``, in ``__init__``.
    """

    config: PackedModelConfig
    symmetry: Literal["SO(3)", "O(3)"] = "SO(3)"
    basis: nn.Module  # of distances
    blocks: nn.ModuleList
    norm: nn.Module  # after the blocks
    rescaled = True  # degrees l > m_max are rescaled on the way out of the edge frame
    force_bias = False  # the force encoding has a bias

    def __init__(
        self, config: PackedModelConfig, heads: dict[str, str], force_input_scale: float, init: Initialisation
    ) -> None:
        super().__init__(config)
        self.symmetry = "O(3)" if config.parity else "SO(3)"
        self.atom_embedding = nn.Parameter(torch.randn(config.num_elements, config.channels))
        shared = config.atom_pairs == "shared"
        self.source_pairs = nn.Embedding(config.num_elements, config.edge_channels) if shared else None
        self.target_pairs = nn.Embedding(config.num_elements, config.edge_channels) if shared else None
        per_degree = [config.channels] * (config.l_max + 1)
        self.force_encoding = None
        if "noise" in heads:
            self.force_encoding = ForceEncoding(
                per_degree, force_input_scale, init,
                bias=self.force_bias, mark=config.mark_corrupted, stress="strain" in heads,
            )  # fmt: skip
        self.edge_degree = EdgeDegreeEmbedding(config)
        by_pair = getattr(config, "basis_origin", "zero") == "covalent_radii"
        self.origins = CovalentOrigins(config.num_elements) if by_pair else None

    def forward(
        self,
        batch: Batch,
        force_input: Tensor | None = None,
        frames: EdgeFrames | None = None,
        l_out: int | None = None,
        execution: Execution = DEFAULT,
    ) -> PackedFeatures:
        """Features of atoms (see :meth:`denskit.models.base.Backbone.forward`)."""
        graph = self._graph(batch, frames, execution)
        x = self.norm(self.run_blocks(self._embedded(batch, force_input, graph), graph, batch, l_out))
        return PackedFeatures(nodes=list(x.split(orders_of(x), 1)), packed=x, graph=graph, batch=batch)

    @abstractmethod
    def run_blocks(self, x: Tensor, graph: PackedGraph, batch: Batch, l_out: int | None) -> Tensor:
        """Packed x [N, (l_max + 1)^2, C] through all blocks; only degrees up to ``l_out`` are wanted (None: all)."""

    def _embedded(self, batch: Batch, force_input: Tensor | None, graph: PackedGraph) -> Tensor:
        """Features [N, (l_max + 1)^2, C] before the first block."""
        (x,) = at_targets(self.edge_degree, lambda _, part: [self.edge_degree(part)], [], graph, 1)
        x[:, 0] += self.atom_embedding[batch.atomic_numbers]
        if force_input is None:
            return x
        assert self.force_encoding is not None, "this model has no noise head, so no force encoding"
        return x + torch.cat(self.force_encoding(force_input), 1)

    def _graph(self, batch: Batch, frames: EdgeFrames | None, execution: Execution) -> PackedGraph:
        config = self.config
        frames = frames or self.frames_of(batch, config.l_max)
        into = pack_wigner(frames.wigner, config.l_max, config.m_max)
        tables = None
        if self.source_pairs is not None and self.target_pairs is not None:
            tables = (self.source_pairs.weight, self.target_pairs.weight)
        origins = () if self.origins is None else (self.origins(batch.atomic_numbers, batch.built_edges.index),)
        fields = self.edge_fields(batch, frames, self.basis(frames.length, *origins), execution)
        return PackedGraph(
            **fields,
            chunks=chunks_of(batch, execution.edge_chunk),
            into=into,
            back=into * rescaling(config.l_max, config.m_max, into) if self.rescaled else into,
            source_elements=batch.atomic_numbers[fields["source"]],
            target_elements=batch.atomic_numbers[fields["target"]],
            pair_tables=tables,
        )
