"""The layers of EquiformerV2: attention and feed-forward network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denskit.geometry.order_major import order_major
from denskit.models.equiformer_v2.config import EquiformerV2Config
from denskit.models.packed import Gate, PackedAttention, PackedGraph, RadialFunction, convolve_ends
from denskit.nn.packed import PackedLinear
from denskit.nn.s2_activation import cast_grid, s2_silu
from denskit.nn.so2_linear import SO2Linear
from denskit.nn.so3_linear import Initialisation, initialise
from denskit.nn.weight_decay import LayerNorm


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


class GraphAttention(PackedAttention):
    """Radial functions multiply both ends, one factor for each order, degree and channel."""

    def __init__(self, config: EquiformerV2Config, channels_out: int, dropout: float) -> None:
        super().__init__()
        l_max, m_max = config.l_max, config.m_max
        heads, hidden, init = config.num_heads, config.hidden_channels, config.initialisation
        extra = heads * config.alpha_channels + _num_activation_scalars(config, hidden)
        self.first = SO2Linear(l_max, m_max, 2 * config.channels, hidden, extra=extra, parity=config.parity, init=init)
        self.radial = RadialFunction(config, self.first.num_factors)
        self.activation = _activation(config, m_max, by_order=True)
        self.second = SO2Linear(l_max, m_max, hidden, heads * config.value_channels, parity=config.parity, init=init)
        self.logit_norm = LayerNorm(config.alpha_channels) if config.attention_renormalisation else nn.Identity()
        self.attention_vector = nn.Parameter(torch.empty(heads, config.alpha_channels))
        initialise(self.attention_vector, config.alpha_channels, "uniform")
        self.dropout = nn.Dropout(dropout)
        self.projection = PackedLinear(l_max, heads * config.value_channels, channels_out, init)

    def message(self, x: Tensor, graph: PackedGraph) -> tuple[Tensor, Tensor]:
        """Both ends in the edge frames, convolved."""
        return convolve_ends(x, graph, self.radial, self.first)


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
        if config.grid_mlp:
            self.activation: nn.Module = GridMLP(l_max, hidden, config.grid_resolution, separable=width > 0, init=init)
        else:
            self.activation = _activation(config, l_max, by_order=False)
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
