"""The layers of EquiformerV3: attention with product activations, feed-forward network, heads for forces and stress."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denskit.geometry.edge_ends import gather_ends
from denskit.geometry.order_major import order_major
from denskit.models.equiformer_v3.config import Activation, EquiformerV3Config
from denskit.models.packed import Gate, PackedAttention, PackedGraph, RadialFunction, convolve_ends, linear
from denskit.nn.packed import PackedLinear
from denskit.nn.s2_activation import cast_grid, s2_silu
from denskit.nn.s2_product import s2_product
from denskit.nn.so2_linear import SO2Linear
from denskit.nn.so3_linear import initialise
from denskit.nn.weight_decay import LayerNorm, RMSNorm


class SphereActivation(nn.Module):
    """Nonlinearity of messages at points of the sphere, beside that of scalars.

    ``swiglu_s2``: the product of the two halves of the channels, times a sigmoid of scalars.
    """

    def __init__(self, config: EquiformerV3Config, hidden: int) -> None:
        super().__init__()
        self.kind: Activation = config.activation
        self.hidden = hidden
        m_max = config.m_max
        self.key = (config.l_max, m_max, config.grid(m_max), "component", True)

    @property
    def channels_in(self) -> int:
        """Channels of the features that go in."""
        return self.hidden if self.kind == "separable_s2" else 2 * self.hidden

    @property
    def num_scalars(self) -> int:
        """Scalars that go in."""
        return {"swiglu_s2": 3, "silu_swiglu_s2": 2, "separable_s2": 1}[self.kind] * self.hidden

    def forward(self, x: Tensor, scalars: Tensor) -> Tensor:
        """Order-major x [E, K, channels_in] and scalars [E, num_scalars] to [E, K, hidden]."""
        to_grid, from_grid = cast_grid(*self.key, x.dtype, x.device)  # type: ignore[arg-type]
        if self.kind == "separable_s2":
            return torch.cat((F.silu(scalars)[:, None], s2_silu(x, to_grid, from_grid[1:])), 1)
        if self.kind == "silu_swiglu_s2":
            out = from_grid @ _swiglu(to_grid @ x)
        else:
            scalars, gates = scalars.split([2 * self.hidden, self.hidden], -1)
            out = s2_product(x, to_grid, from_grid) * torch.sigmoid(gates)[:, None]
        return _plus_scalars(out, _swiglu(scalars))


class GateActivation(nn.Module):
    """SiLU on scalars, a sigmoid of scalars for each higher degree and channel."""

    def __init__(self, config: EquiformerV3Config, hidden: int) -> None:
        super().__init__()
        self.channels_in, self.num_scalars = hidden, config.l_max * hidden
        self.gate = Gate([l for l, _, _ in order_major(config.l_max, config.m_max)])

    def forward(self, x: Tensor, scalars: Tensor) -> Tensor:
        """Order-major x [E, K, hidden] and scalars [E, l_max hidden] to [E, K, hidden]."""
        return self.gate(x, scalars)  # type: ignore[no-any-return]


def _swiglu(x: Tensor) -> Tensor:
    """SiLU of the first half of the channels times the second half."""
    first, second = x.chunk(2, -1)
    return F.silu(first) * second


class GraphAttention(PackedAttention):
    """Radial functions multiply both ends, one factor for each degree and channel."""

    def __init__(self, config: EquiformerV3Config, channels_out: int, dropout: float, *, gate: bool = False) -> None:
        super().__init__()
        l_max, m_max = config.l_max, config.m_max
        heads, hidden = config.num_heads, config.hidden_channels
        self.sink, self.softcap = config.attention_epsilon, config.softcap
        self.activation = GateActivation(config, hidden) if gate else SphereActivation(config, hidden)
        extra = heads * config.alpha_channels + self.activation.num_scalars
        self.add_ends, channels = config.add_ends, config.channels * (1 if config.add_ends else 2)
        self.first = SO2Linear(
            l_max, m_max, channels, self.activation.channels_in, extra=extra, parity=config.parity, init="uniform"
        )
        self.radial = RadialFunction(config, (l_max + 1) * 2 * config.channels)
        self.second = SO2Linear(
            l_max, m_max, hidden, heads * config.value_channels, parity=config.parity, init="uniform"
        )
        if not gate and config.activation != "separable_s2":
            with torch.no_grad():  # the scalars are a sum of two
                self.second.weight_0[:, :hidden] *= 2**-0.5
        norm = RMSNorm if config.norm == "merged_rms_norm" else LayerNorm
        self.logit_norm = norm(config.alpha_channels, eps=1e-5)
        self.attention_vector = nn.Parameter(torch.empty(heads, config.alpha_channels))
        initialise(self.attention_vector, config.alpha_channels, "uniform")
        self.dropout = nn.Dropout(dropout)
        self.projection = PackedLinear(l_max, heads * config.value_channels, channels_out, "uniform")

    def message(self, x: Tensor, graph: PackedGraph) -> tuple[Tensor, Tensor]:
        """Both ends in the edge frames, side by side or added, convolved."""
        if not self.add_ends:
            return convolve_ends(x, graph, self.radial, self.first, shared=True)
        ends = graph.into @ gather_ends(x, graph.source, graph.target)
        factors = self.radial(graph).unflatten(1, (self.first.l_max + 1, -1))  # of each degree
        degrees = [l for l, _, _ in order_major(self.first.l_max, self.first.m_max)]
        source, target = (ends * factors[:, degrees]).chunk(2, -1)
        return self.first(source + target)  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Linear, an MLP with one nonlinearity at points of the sphere, linear; scalars have an MLP of their own beside it.

    The linear layers of the MLP commute with the way to the points and back.  So they act on coefficients, merged with
    the linear layers around them.
    """

    def __init__(self, config: EquiformerV3Config, channels_out: int) -> None:
        super().__init__()
        hidden, self.kind = config.ffn_channels, config.activation
        self.key = (config.l_max, config.l_max, config.grid(config.l_max), "component", False)
        product = config.activation != "separable_s2"
        self.first = PackedLinear(config.l_max, config.channels, hidden, "uniform")
        self.scalars = linear(config.channels, (2 if product else 1) * hidden)
        self.gates = linear(config.channels, hidden) if config.activation == "swiglu_s2" else None
        self.grid_first = linear(hidden, (2 if product else 1) * hidden, bias=False)
        self.grid_inner = None if product else linear(hidden, hidden, bias=False)
        self.grid_last = linear(hidden, hidden, bias=False)
        self.second = PackedLinear(config.l_max, hidden, channels_out, "uniform")

    def forward(self, x: Tensor) -> Tensor:
        """Packed [N, (l_max + 1)^2, C] to the same shape."""
        to_grid, from_grid = cast_grid(*self.key, x.dtype, x.device)  # type: ignore[arg-type]
        inner = self.first(x, after=self.grid_first.weight)
        scalars = self.scalars(x[:, 0])
        if self.kind == "separable_s2":
            assert self.grid_inner is not None
            rest = s2_silu(inner, to_grid, from_grid[1:], self.grid_inner.weight)
            out = self.second(F.pad(rest, (0, 0, 1, 0)), before=self.grid_last.weight)
            return _plus_scalars(out, F.silu(scalars) @ self.second.weight[0].T)
        if self.kind == "silu_swiglu_s2":
            activated = from_grid @ _swiglu(to_grid @ inner)
        else:
            assert self.gates is not None
            activated = s2_product(inner, to_grid, from_grid) * torch.sigmoid(self.gates(x[:, 0]))[:, None]
        out = self.second(activated, before=self.grid_last.weight)
        return _plus_scalars(out, _swiglu(scalars) @ self.second.weight[0].T)


def _plus_scalars(x: Tensor, scalars: Tensor) -> Tensor:
    first, rest = x.split([1, x.shape[1] - 1], 1)  # slices would allocate the whole tensor in the backward pass
    return torch.cat((first + scalars[:, None], rest), 1)
