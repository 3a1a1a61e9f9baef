"""The layers of Equiformer: radial functions, edge-degree embedding, the attentions, the feed-forward network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denskit.geometry.so2 import paths_to
from denskit.models.equiformer.config import EquiformerConfig
from denskit.models.equiformer.graph import EquiformerGraph
from denskit.models.equiformer.kernels.plan import aggregate_plan, gate_plan
from denskit.models.equiformer.tensor_product import DepthwiseTensorProductLinear, SharedTensorProductLinear
from denskit.nn.activation import gate, smooth_leaky_relu
from denskit.nn.attention import edge_softmax
from denskit.nn.dropout import EquivariantDropout
from denskit.nn.so3_linear import Initialisation, SO3Linear
from denskit.nn.weight_decay import LayerNorm


class RadialFunction(nn.Module):
    """MLP with layer norms from the radial basis [E, widths[0]] to path weights [E, num_out], plus an offset."""

    def __init__(self, widths: Sequence[int], num_out: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(widths):
            linear = nn.Linear(width_in, width_out)
            nn.init.zeros_(linear.bias)
            layers += [linear, LayerNorm(width_out), nn.SiLU()]
        self.hidden = nn.Sequential(*layers)
        self.output = nn.Linear(widths[-1], num_out, bias=False)
        bound = widths[-1] ** -0.5
        self.offset = nn.Parameter(torch.empty(num_out).uniform_(-bound, bound))

    def forward(self, basis: Tensor) -> Tensor:
        """Radial basis [E, widths[0]] to path weights [E, num_out]."""
        return F.linear(self.hidden(basis), self.output.weight, self.offset)


class EdgeDegreeEmbedding(nn.Module):
    """Sum over neighbours of radial weights times spherical harmonics, mixed by a linear layer.

    The published form is a depthwise tensor product of constant scalars with the harmonics.  Only its paths from degree
    0 are non-zero, and of these only m = 0 in the edge frame.  All published parameters are kept.
    """

    def __init__(self, config: EquiformerConfig) -> None:
        super().__init__()
        assert config.average_degree is not None, "checked by Backbone"
        channels, l_max, init = config.channels, config.l_max, config.initialisation
        self.constant = SO3Linear([1], [channels[0]], init=init)
        self.product = DepthwiseTensorProductLinear(channels, channels, init=init, parity=config.parity)
        self.radial = RadialFunction(config.radial_widths, self.product.num_path_weights)
        # channel positions of the paths (0, l -> l): among all path weights, and among the paths into l
        self.positions = []
        for l in range(l_max + 1):
            first = sum(self.product.widths[:l])
            assert paths_to(l, l_max, l_max)[0].l1 == 0, "the path from degree 0 comes first"
            self.positions.append(range(first, first + channels[0]))
        self.num_scalars = channels[0]
        self.scale = config.average_degree**-0.5

    def forward(self, graph: EquiformerGraph) -> list[Tensor]:
        """out[l] [N, 2l+1, C_l]."""
        value = graph.radial(self._mixed)
        if graph.weight is not None:
            value = value * graph.weight[:, None]
        degrees = tuple(range(len(self.positions)))
        plan = aggregate_plan(degrees, self.product.channels_out, 0)
        uniform = value.new_full((value.shape[0], 1), self.scale)
        return graph.aggregate(plan, [value[:, None]], uniform)

    def _mixed(self, basis: Tensor) -> Tensor:
        """Radial basis to the components m = 0 of all degrees side by side."""
        used = torch.cat([torch.arange(r.start, r.stop, device=basis.device) for r in self.positions])
        weights = F.linear(self.radial.hidden(basis), self.radial.output.weight[used], self.radial.offset[used])
        (constant,) = self.constant([weights.new_ones(1, 1, 1)])
        mixed = []
        for l, part in enumerate(weights.split(self.num_scalars, -1)):
            # c_0 of (0, l -> l) is sqrt((2 l + 1)(2 l + 1)) * w3j(0, l, l) = sqrt(2 l + 1)
            matrix = constant[0].mT * self.product.weights[l][: self.num_scalars] * (2 * l + 1) ** 0.5
            mixed.append(part @ matrix)
        mixed[0] = mixed[0] + self.product.bias
        return torch.cat(mixed, -1)


class _Attention(nn.Module):
    """Base of all attentions: features of both ends in, weighted values summed at the targets and projected out.

    ``forward(x, graph, degrees)`` maps x[l] [N, 2l+1, C_l] to one tensor [N, 2l+1, C'_l] for each of ``degrees``.
    ``attends`` False: messages are summed and divided by sqrt(average degree), the DeNS paper's variant without
    attention.
    """

    degree_scale = 1.0  # of rescale_degree

    def __init__(
        self, config: EquiformerConfig, channels_in: tuple[int, ...], channels_out: tuple[int, ...], attends: bool
    ) -> None:
        super().__init__()
        assert config.average_degree is not None, "checked by Backbone"
        self.config, self.average_degree, init = config, config.average_degree, config.initialisation
        self.attends = attends
        hidden = config.messages_of(channels_in)
        self.merge_source = SO3Linear(channels_in, hidden, init=init)
        self.merge_target = SO3Linear(channels_in, hidden, bias=False, init=init)
        has_scalars = channels_out[0] > 0  # 0 channels: the degree is absent
        self.projection = SO3Linear(config.value_channels, channels_out, bias=has_scalars, init=init)
        self.dropout = nn.Dropout(config.attention_dropout)
        self.projection_dropout = EquivariantDropout(config.projection_dropout)

    def _make_attention_vector(self) -> nn.Parameter | None:
        if not self.attends:
            return None
        vector = torch.empty(self.config.num_heads, self.config.head_channels[0])
        nn.init.xavier_uniform_(vector)
        return nn.Parameter(vector)

    def _weights(self, logits: Tensor, vector: Tensor | None, graph: EquiformerGraph) -> Tensor:
        """Attention weights [E, H] from scalars [E, H C_h], or weights [E, 1] of a plain sum.

        As in GATv2, the non-linearity comes before the product.
        """
        if vector is None:
            weight = graph.basis.new_ones(graph.source.shape[0]) if graph.weight is None else graph.weight
            return weight[:, None] * self.average_degree**-0.5
        heads = smooth_leaky_relu(logits).unflatten(-1, vector.shape)
        return self._softmax((heads * vector).sum(-1), graph)

    def _softmax(self, logits: Tensor, graph: EquiformerGraph) -> Tensor:
        weights = edge_softmax(logits, graph.target, graph.num_atoms, graph.weight, smooth=graph.enveloped)
        return self.dropout(weights)  # type: ignore[no-any-return]

    def _aggregate(
        self, values: Sequence[Tensor], attention: Tensor, degrees: Sequence[int], graph: EquiformerGraph
    ) -> list[Tensor]:
        """Weight values (see AggregatePlan) by attention [E, H or 1], rotate them back, sum at the targets, project."""
        channels = tuple(self.config.value_channels[l] for l in degrees)
        summed = graph.aggregate(aggregate_plan(tuple(degrees), channels, max(degrees)), values, attention)
        if self.config.rescale_degree:
            degree = graph.degree()[:, None, None] * self.degree_scale
            summed = [part * degree for part in summed]
        return self.projection_dropout(self.projection(summed, degrees))


class _GatedMessages(nn.Module):
    """Two tensor products with a gate between them (non-linear messages); the gate commutes with the rotation."""

    def __init__(self, config: EquiformerConfig, channels_in: tuple[int, ...], num_logits: int) -> None:
        super().__init__()
        hidden, init = config.messages_of(channels_in), config.initialisation
        self.num_scalars, self.widths, self.num_logits = hidden[0], hidden[1:], num_logits
        first = (hidden[0] + sum(hidden[1:]) + num_logits, *hidden[1:])
        self.first = DepthwiseTensorProductLinear(hidden, first, init=init, parity=config.parity)
        self.second = SharedTensorProductLinear(hidden, config.value_channels, init=init, parity=config.parity)
        self.radial = RadialFunction(config.radial_widths, self.first.num_path_weights)

    def forward(
        self, at_source: Sequence[Tensor], at_target: Sequence[Tensor], graph: EquiformerGraph, degrees: Sequence[int]
    ) -> tuple[list[Tensor], Tensor]:
        """Values of some degrees (see AggregatePlan), and scalars [E, num_logits] for the logits."""
        m_max = max(degrees)
        coupled = graph.couple(self.first.plan(m_max), at_source, at_target, graph.radial(self.radial))
        plan = gate_plan(self.num_scalars, self.widths, self.num_logits, m_max)
        gated, logits = graph.kernels.gate(plan, self.first(coupled, m_max))
        return self.second(gated, degrees), logits


class NonlinearAttention(_Attention):
    """The paper's equivariant graph attention: MLP logits, non-linear messages."""

    def __init__(
        self, config: EquiformerConfig, channels_in: tuple[int, ...], channels_out: tuple[int, ...], attends: bool
    ) -> None:
        super().__init__(config, channels_in, channels_out, attends)
        self.messages = _GatedMessages(config, channels_in, num_logits=config.value_channels[0] if attends else 0)
        self.attention_vector = self._make_attention_vector()

    def forward(self, x: Sequence[Tensor], graph: EquiformerGraph, degrees: Sequence[int]) -> list[Tensor]:
        """See the base class."""
        values, logits = self.messages(self.merge_source(x), self.merge_target(x), graph, degrees)
        return self._aggregate(values, self._weights(logits, self.attention_vector, graph), degrees, graph)


class _LinearMessages(_Attention):
    """Messages of one tensor product, with ``product_channels``."""

    def __init__(
        self,
        config: EquiformerConfig,
        channels_in: tuple[int, ...],
        channels_out: tuple[int, ...],
        attends: bool,
        product_channels: Sequence[int],
    ) -> None:
        super().__init__(config, channels_in, channels_out, attends)
        self.product = DepthwiseTensorProductLinear(
            config.messages_of(channels_in), product_channels, init=config.initialisation, parity=config.parity
        )
        self.radial = RadialFunction(config.radial_widths, self.product.num_path_weights)

    def _mixed(self, x: Sequence[Tensor], graph: EquiformerGraph, m_max: int) -> dict[tuple[int, int], Tensor]:
        """(l, m) -> [E, 1 or 2, C_l] in the edge frames."""
        plan = self.product.plan(m_max)
        coupled = graph.couple(plan, self.merge_source(x), self.merge_target(x), graph.radial(self.radial))
        mixed = self.product(coupled, m_max)
        return {(block.l3, block.m): part for block, part in zip(plan.blocks, mixed, strict=True)}


def _by_order(mixed: Mapping[tuple[int, int], Tensor], degrees: Sequence[int]) -> list[Tensor]:
    """(l, m) -> [E, 1 or 2, C_l] to one tensor for each m <= max(degrees), degrees >= m side by side."""
    return [torch.cat([mixed[l, m] for l in degrees if l >= m], -1) for m in range(max(degrees) + 1)]


class LinearAttention(_LinearMessages):
    """MLP logits, linear messages: logits and values from one tensor product."""

    def __init__(
        self, config: EquiformerConfig, channels_in: tuple[int, ...], channels_out: tuple[int, ...], attends: bool
    ) -> None:
        scalars, *rest = config.value_channels
        super().__init__(config, channels_in, channels_out, attends, (scalars * (2 if attends else 1), *rest))
        self.attention_vector = self._make_attention_vector()

    def forward(self, x: Sequence[Tensor], graph: EquiformerGraph, degrees: Sequence[int]) -> list[Tensor]:
        """See the base class."""
        mixed = self._mixed(x, graph, max(degrees))
        logits = mixed[0, 0]
        if self.attends:
            mixed[0, 0], logits = logits.chunk(2, -1)
        weights = self._weights(logits[:, 0], self.attention_vector, graph)
        return self._aggregate(_by_order(mixed, degrees), weights, degrees, graph)


class DotProductAttention(_LinearMessages):
    """Logits: inner product over all degrees of the target's query with the edge's key."""

    def __init__(
        self, config: EquiformerConfig, channels_in: tuple[int, ...], channels_out: tuple[int, ...], attends: bool
    ) -> None:
        super().__init__(config, channels_in, channels_out, attends, [2 * c for c in config.value_channels])
        self.degree_scale = 1 / self.average_degree  # published: here only
        self.query = SO3Linear(channels_in, config.value_channels, init=config.initialisation)

    def forward(self, x: Sequence[Tensor], graph: EquiformerGraph, degrees: Sequence[int]) -> list[Tensor]:
        """See the base class."""
        both = {key: part.chunk(2, -1) for key, part in self._mixed(x, graph, self.config.l_max).items()}
        keys, values = ({key: pair[k] for key, pair in both.items()} for k in (0, 1))
        parts = [self._inner_products(l, q, keys, graph) for l, q in enumerate(self.query(x))]
        weights = self._softmax(torch.stack(parts).sum(0), graph)
        return self._aggregate(_by_order(values, degrees), weights, degrees, graph)

    def _inner_products(
        self, l: int, query: Tensor, keys: Mapping[tuple[int, int], Tensor], graph: EquiformerGraph
    ) -> Tensor:
        """Part [E, H] of the logits from degree l."""
        at_target = query.index_select(0, graph.target)
        rotated = at_target if l == 0 else graph.frames.wigner[l] @ at_target
        key = torch.cat([keys[l, m] for m in range(l + 1)], 1)
        products = (rotated * key).sum(1).unflatten(-1, (self.config.num_heads, -1)).sum(-1)
        return products * ((2 * l + 1) * sum(self.config.head_channels)) ** -0.5


def attention_of(
    config: EquiformerConfig, channels_in: Sequence[int], channels_out: Sequence[int], kind: str | None = None
) -> nn.Module:
    """The attention that the settings describe; ``kind`` in place of ``config.attention``."""
    kind = kind or config.attention
    types = {"nonlinear": NonlinearAttention, "linear": LinearAttention}
    chosen = DotProductAttention if kind == "dot_product" else types[config.messages]
    return chosen(config, tuple(channels_in), tuple(channels_out), kind != "none")


class FeedForward(nn.Module):
    """Linear, gate, linear on each atom."""

    def __init__(
        self,
        channels_in: Sequence[int],
        channels_hidden: Sequence[int],
        channels_out: Sequence[int],
        init: Initialisation,
        dropout: float,
    ) -> None:
        super().__init__()
        self.num_scalars = channels_hidden[0]
        gated = (channels_hidden[0] + sum(channels_hidden[1:]), *channels_hidden[1:])
        self.first = SO3Linear(channels_in, gated, init=init)
        self.second = SO3Linear(channels_hidden, channels_out, init=init)
        self.dropout = EquivariantDropout(dropout)

    def forward(self, x: Sequence[Tensor]) -> list[Tensor]:
        """x[l] [N, 2l+1, C_l] to out[l] [N, 2l+1, C'_l] for the degrees of x."""
        return self.dropout(self.second(gate(self.first(x), self.num_scalars)))
