"""The layers of EquiformerV2: radial functions, edge-degree embedding, attention, feed-forward network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denskit.geometry.order_major import order_major, rows_of_degrees
from denskit.models.equiformer_v2.config import EquiformerV2Config
from denskit.models.equiformer_v2.packed import PackedLinear
from denskit.models.equiformer_v2.so2_linear import SO2Linear
from denskit.models.equiformer_v2.so2_messages import MessageEdges, orders, rotate_and_convolve, weigh_and_sum
from denskit.models.graph import EdgeGraph
from denskit.nn.activation import smooth_leaky_relu
from denskit.nn.attention import edge_softmax
from denskit.nn.s2_activation import cast_grid, s2_silu
from denskit.nn.so3_linear import Initialisation, initialise


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
        return self.into.requires_grad or torch.compiler.is_compiling()

    def edges(self, matrix: Tensor) -> MessageEdges:
        """Edges for messages in chunks, with ``into`` or a part of ``back``."""
        return MessageEdges(self.source, self.target, matrix, self.num_atoms)


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

    def __init__(self, config: EquiformerV2Config, num_out: int) -> None:
        super().__init__()
        width, pairs = config.edge_channels, 0 if config.atom_pairs == "none" else 2
        own = config.atom_pairs == "own"
        self.source = pair_table(config.num_elements, width) if own else None
        self.target = pair_table(config.num_elements, width) if own else None
        self.sizes = [config.num_basis] + [width] * pairs
        self.first = _radial_linear(sum(self.sizes), width)
        self.first_norm = nn.LayerNorm(width)
        self.second = _radial_linear(width, width)
        self.second_norm = nn.LayerNorm(width)
        self.output = _radial_linear(width, num_out)

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


def _radial_linear(width_in: int, width_out: int) -> nn.Linear:
    """A linear layer with torch's uniform weights in ±1 / sqrt(width_in), in every initialisation; biases zero."""
    linear = nn.Linear(width_in, width_out)
    nn.init.zeros_(linear.bias)
    return linear


class EdgeDegreeEmbedding(nn.Module):
    """Sum over neighbours of radial functions times spherical harmonics, over the average degree (not its root)."""

    def __init__(self, config: EquiformerV2Config) -> None:
        super().__init__()
        assert config.average_degree is not None, "checked by EquiformerV2"
        self.degrees, self.channels = config.l_max + 1, config.channels
        self.radial = RadialFunction(config, self.degrees * config.channels)
        self.scale = 1 / config.average_degree

    def forward(self, graph: PackedGraph) -> Tensor:
        """Packed features [N, (l_max + 1)^2, C]."""
        values = self.radial(graph).unflatten(1, (self.degrees, self.channels))
        weights = values.new_ones(values.shape[0]) if graph.weight is None else graph.weight
        back = graph.back[:, : self.degrees]  # the rows of m = 0
        return _weigh_and_sum(graph, back, values, weights[:, None]) * self.scale


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
        return torch.cat((F.silu(x[:, :1]), x[:, 1:] * gates), 1)


class S2Activation(nn.Module):
    """SiLU of the features as functions on the sphere; separable: scalars have their own SiLU outside the grid."""

    def __init__(self, l_max: int, m_max: int, resolution: int, *, separable: bool, by_order: bool) -> None:
        super().__init__()
        self.key = (l_max, m_max, (resolution, resolution), "component", by_order)
        self.separable = separable

    def forward(self, x: Tensor, scalars: Tensor) -> Tensor:
        """Features x [N, rows, C]; scalars [N, C] where separable, else unused."""
        to_grid, from_grid = cast_grid(*self.key, x.dtype, x.device)  # type: ignore[arg-type]
        if not self.separable:
            return s2_silu(x, to_grid, from_grid)
        return torch.cat((F.silu(scalars)[:, None], s2_silu(x, to_grid, from_grid[1:])), 1)


def _activation(config: EquiformerV2Config, m_max: int, *, by_order: bool) -> Gate | S2Activation:
    if config.activation == "gate":
        degrees = [l for l in range(config.l_max + 1) for _ in range(2 * l + 1)]
        return Gate([l for l, _, _ in order_major(config.l_max, m_max)] if by_order else degrees)
    separable = config.activation == "separable_s2"
    return S2Activation(config.l_max, m_max, config.grid_resolution, separable=separable, by_order=by_order)


def _num_activation_scalars(config: EquiformerV2Config, hidden: int) -> int:
    """Scalars that the activation reads beside the features."""
    return {"gate": config.l_max * hidden, "separable_s2": hidden, "s2": 0}[config.activation]


class GraphAttention(nn.Module):
    """Equivariant graph attention: two SO(2) convolutions with an activation between, MLP logits, values summed.

    The features of both ends of an edge are concatenated and multiplied by radial functions before the first
    convolution.
    """

    def __init__(self, config: EquiformerV2Config, channels_out: int, dropout: float) -> None:
        super().__init__()
        self.l_max, self.m_max = l_max, m_max = config.l_max, config.m_max
        heads, hidden, init = config.num_heads, config.hidden_channels, config.initialisation
        self.logit_width = heads * config.alpha_channels
        extra = self.logit_width + _num_activation_scalars(config, hidden)
        self.first = SO2Linear(l_max, m_max, 2 * config.channels, hidden, extra=extra, init=init)
        self.radial = RadialFunction(config, self.first.num_factors)
        self.activation = _activation(config, m_max, by_order=True)
        self.second = SO2Linear(l_max, m_max, hidden, heads * config.value_channels, init=init)
        self.logit_norm = nn.LayerNorm(config.alpha_channels) if config.attention_renormalisation else nn.Identity()
        self.attention_vector = nn.Parameter(torch.empty(heads, config.alpha_channels))
        initialise(self.attention_vector, config.alpha_channels, "uniform")
        self.dropout = nn.Dropout(dropout)
        self.projection = PackedLinear(l_max, heads * config.value_channels, channels_out, init)

    def forward(self, x: Tensor, graph: PackedGraph, degrees: tuple[int, ...]) -> Tensor:
        """Packed x [N, (l_max + 1)^2, C] to the rows of some degrees, [N, sum of 2l + 1, C_out]."""
        message, scalars = self._first(x, graph)
        logits, scalars = scalars.split([self.logit_width, scalars.shape[1] - self.logit_width], -1)
        every = len(degrees) == self.l_max + 1
        values, _ = self.second(self.activation(message, scalars), degrees=None if every else degrees)
        summed = _weigh_and_sum(graph, self._back(graph, degrees), values, self._attention(logits, graph))
        return self.projection(summed, degrees)  # type: ignore[no-any-return]

    def _first(self, x: Tensor, graph: PackedGraph) -> tuple[Tensor, Tensor]:
        """Messages [E, K, hidden] in the edge frames and scalars [E, extra]."""
        if graph.in_one_piece:
            ends = torch.cat((x.index_select(0, graph.source), x.index_select(0, graph.target)), -1)
            return self.first(graph.into @ ends, self.radial(graph))  # type: ignore[no-any-return]
        radial, layout = self.radial.output, orders(self.l_max, self.m_max)
        inputs = (x, self.radial.hidden(graph), radial.weight, radial.bias, self.first.bias)
        out = rotate_and_convolve(graph.edges(graph.into), layout, *inputs, self.first.matrices())
        scalars, message = out.split([self.first.extra, out.shape[1] - self.first.extra], 1)
        return message.unflatten(1, (-1, self.first.channels_out)), scalars

    def _attention(self, logits: Tensor, graph: PackedGraph) -> Tensor:
        """Weights [E, H] of the edges into each atom."""
        heads = smooth_leaky_relu(self.logit_norm(logits.unflatten(-1, self.attention_vector.shape)), scale=1.0)
        scores = (heads * self.attention_vector).sum(-1)
        weights = edge_softmax(scores, graph.target, graph.num_atoms, graph.weight, smooth=graph.enveloped)
        return self.dropout(weights)  # type: ignore[no-any-return]

    def _back(self, graph: PackedGraph, degrees: tuple[int, ...]) -> Tensor:
        """Matrix [E, K', sum of 2l + 1]; its transpose maps order-major rows of some degrees to their packed rows."""
        if len(degrees) == self.l_max + 1:
            return graph.back
        rows = rows_of_degrees(self.l_max, self.m_max, degrees)
        columns = [l * l + k for l in degrees for k in range(2 * l + 1)]
        return graph.back[:, rows][:, :, columns]


def _weigh_and_sum(graph: PackedGraph, back: Tensor, values: Tensor, weights: Tensor) -> Tensor:
    """Weight values [E, K', H C] by [E, H], rotate them back, sum them at the targets: [N, rows, H C]."""
    if not graph.in_one_piece:
        return weigh_and_sum(graph.edges(back), values, weights)
    weighted = values.unflatten(2, (weights.shape[1], -1)) * weights[:, None, :, None]
    return graph.sum_over_edges(back.mT @ weighted.flatten(2))


class FeedForward(nn.Module):
    """Linear, activation, linear on each atom; with ``grid_mlp`` the activation is an MLP at points of the sphere."""

    def __init__(self, config: EquiformerV2Config, channels_out: int) -> None:
        super().__init__()
        l_max, hidden, init = config.l_max, config.ffn_channels, config.initialisation
        self.l_max = l_max
        self.first = PackedLinear(l_max, config.channels, hidden, init)
        # as published: a grid MLP has its own scalars unless the activation is the plain S2 one
        width = hidden if config.grid_mlp and config.activation != "s2" else _num_activation_scalars(config, hidden)
        self.scalars = _linear(config.channels, width, init, bias=True) if width else None
        self.activation = (
            GridMLP(l_max, hidden, config.grid_resolution, separable=width > 0, init=init)
            if config.grid_mlp
            else _activation(config, l_max, by_order=False)
        )
        self.second = PackedLinear(l_max, hidden, channels_out, init)
        self.scalars_see_all = config.activation == "s2"

    def forward(self, x: Tensor, l_out: int) -> Tensor:
        """Packed [N, (l_max + 1)^2, C] to packed features up to l_out (0 or l_max)."""
        if l_out == 0 and not self.scalars_see_all:
            return self._scalars_only(x)
        scalars = x[:, 0] if self.scalars is None else self.scalars(x[:, 0])
        activated = self.activation(self.first(x), scalars)
        return self.second(activated if l_out else activated[:, :1])  # type: ignore[no-any-return]

    def _scalars_only(self, x: Tensor) -> Tensor:
        """The scalars as a function of scalars alone: SiLU of ``scalars``, or with a gate of ``first``."""
        if isinstance(self.activation, Gate):
            return self.second(F.silu(self.first(x[:, :1])))  # type: ignore[no-any-return]
        assert self.scalars is not None, "only the plain S2 activation has none"
        return self.second(F.silu(self.scalars(x[:, 0]))[:, None])  # type: ignore[no-any-return]


class GridMLP(nn.Module):
    """Linear, SiLU, linear, SiLU, linear at points of the sphere, without biases.

    The outer two linear layers commute with the grid matrices, so they act on the coefficients.
    """

    def __init__(self, l_max: int, width: int, resolution: int, *, separable: bool, init: Initialisation) -> None:
        super().__init__()
        self.key = (l_max, l_max, (resolution, resolution), "component", False)
        self.separable = separable
        self.first, self.inner, self.last = (_linear(width, width, init, bias=False) for _ in range(3))

    def forward(self, x: Tensor, scalars: Tensor) -> Tensor:
        """Packed x [N, (l_max + 1)^2, C]; scalars [N, C] take the place of the grid's where separable."""
        x = self.first(x)
        to_grid, from_grid = cast_grid(*self.key, x.dtype, x.device)  # type: ignore[arg-type]
        if not self.separable:
            return self.last(s2_silu(x, to_grid, from_grid, self.inner.weight))  # type: ignore[no-any-return]
        rest = self.last(s2_silu(x, to_grid, from_grid[1:], self.inner.weight))
        return torch.cat((F.silu(scalars)[:, None], rest), 1)


def _linear(width_in: int, width_out: int, init: Initialisation, *, bias: bool) -> nn.Linear:
    linear = nn.Linear(width_in, width_out, bias=bias)
    initialise(linear.weight, width_in, init)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
