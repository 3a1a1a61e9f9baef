"""Tensor products with an edge's spherical harmonics, evaluated in the edge frame as SO(2) contractions.

A path (l1, l2 -> l3) couples features of degree l1 with Y_l2 of the edge.  In the edge frame Y_l2 has only m = 0, so
for each |m| the path is one number c_m (component normalisation, |Y_l2| = sqrt(2 l2 + 1)):

    l1 + l2 + l3 even:  out(+m) = c_m in(+m),  out(-m) =  c_m in(-m)
    l1 + l2 + l3 odd:   out(+m) = c_m in(-m),  out(-m) = -c_m in(+m),  nothing at m = 0

Equiformer's depthwise tensor product followed by its linear layer is then, for every (l3, |m|), one matrix product
with c_m folded into the matrix; where the path weights do not depend on the edge they fold in too.

Edge-frame features are nested lists ``f[l][m]  # [E, 1 if m == 0 else 2, C_l]`` with rows (+m, -m).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from denskit.geometry.so3 import Initialisation, initialise
from denskit.geometry.wigner_3j import wigner_3j


@dataclass(frozen=True)
class Path:
    """One way to couple degrees l1 (features) and l2 (edge) to l3."""

    l1: int
    l2: int
    l3: int

    @property
    def even(self) -> bool:
        """Whether l1 + l2 + l3 is even."""
        return (self.l1 + self.l2 + self.l3) % 2 == 0

    def coefficient(self, m: int) -> float:
        """c_m of the module's docstring; 0 for odd paths at m = 0."""
        couple = wigner_3j(self.l1, self.l2, self.l3)[:, self.l2, :]
        source = m if self.even else -m
        norm = ((2 * self.l3 + 1) * (2 * self.l2 + 1)) ** 0.5
        return float(couple[self.l1 + source, self.l3 + m]) * norm


def paths_to(l3: int, l_in: int, l_edge: int) -> list[Path]:
    """All paths into l3: even ones by ascending l1, then odd ones by descending l1.

    In this order the paths that exist at order m (l1 >= m) are one contiguous range for every m.
    """
    found = [Path(l1, l2, l3) for l1 in range(l_in + 1) for l2 in range(l_edge + 1) if abs(l1 - l2) <= l3 <= l1 + l2]
    even = [path for path in found if path.even]
    odd = [path for path in reversed(found) if not path.even]
    return even + odd


class _Ranges(torch.autograd.Function):
    """Overlapping ranges of the last axis; the backward sums into one buffer instead of one buffer a range."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *ranges: tuple[int, int]) -> tuple[Tensor, ...]:
        ctx.ranges, ctx.shape = ranges, x.shape
        ctx.set_materialize_grads(False)
        return tuple(x[..., start:stop] for start, stop in ranges)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        present = [(r, g) for r, g in zip(ctx.ranges, grads, strict=True) if g is not None]
        if not present:
            return (None,) * (1 + len(ctx.ranges))
        used, tensors = zip(*present, strict=True)
        return (_SumRanges.apply(ctx.shape, used, *tensors), *(None,) * len(ctx.ranges))


class _SumRanges(torch.autograd.Function):
    """The transpose of :class:`_Ranges`."""

    @staticmethod
    def forward(ctx: Any, shape: torch.Size, ranges: tuple[tuple[int, int], ...], *parts: Tensor) -> Tensor:
        ctx.ranges = ranges
        out = parts[0].new_zeros(shape)
        for (start, stop), part in zip(ranges, parts, strict=True):
            out[..., start:stop] += part
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *_Ranges.apply(grad, *ctx.ranges))


def ranges_of(x: Tensor, ranges: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
    """Views ``x[..., start:stop]`` for possibly overlapping ranges, cheap in the backward."""
    return _Ranges.apply(x, *ranges)


def split_orders(x: Tensor) -> list[Tensor]:
    """Rows of m-major features [E, 2l+1, C] by |m|: [E, 1, C] and then [E, 2, C] each."""
    return list(x.split([1] + [2] * ((x.shape[1] - 1) // 2), dim=1))


@dataclass(frozen=True)
class _Block:
    """The paths of one (l3, |m|, parity): where they lie among all paths into l3, and their coefficients."""

    m: int
    even: bool
    l1: tuple[int, ...]  # degree of every path
    coefficients: tuple[float, ...]  # c_m of every path
    widths: tuple[int, ...]  # channels of every path
    start: int  # channel range among all paths into l3
    stop: int


def _blocks(paths: Sequence[Path], channels: Sequence[int]) -> list[_Block]:
    starts = [sum(channels[p.l1] for p in paths[:k]) for k in range(len(paths))]
    blocks = []
    for m in range(paths[0].l3 + 1):
        for even in (True, False):
            chosen = [k for k, p in enumerate(paths) if p.even == even and p.l1 >= m and (even or m > 0)]
            if not chosen:
                continue
            l1 = tuple(paths[k].l1 for k in chosen)
            widths = tuple(channels[degree] for degree in l1)
            coefficients = tuple(paths[k].coefficient(m) for k in chosen)
            blocks.append(_Block(m, even, l1, coefficients, widths, starts[chosen[0]], starts[chosen[0]] + sum(widths)))
    return blocks


@cache
def _column(values: tuple[float, ...], counts: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Column [sum(counts), 1] with each value repeated: coefficients of paths spread over their channels."""
    with torch.inference_mode(False):
        spread = torch.tensor(values, dtype=torch.float64).repeat_interleave(torch.tensor(counts))
        return spread[:, None].to(device=device, dtype=dtype)


@cache
def _rows(l1: tuple[int, ...], channels: tuple[int, ...], m: int, device: torch.device) -> Tensor:
    """For the channels of paths from degrees l1: their positions among the channels of all degrees >= m."""
    starts = [sum(channels[m:degree]) for degree in range(len(channels))]
    with torch.inference_mode(False):
        return torch.cat([torch.arange(channels[degree]) + starts[degree] for degree in l1]).to(device)


def _quarter_turn(x: Tensor) -> Tensor:
    """Rows (+m, -m) of x [E, 2, C] to (in(-m), -in(+m)): what an odd path does."""
    plus, minus = x.unbind(1)
    return torch.stack((minus, -plus), 1)


class _PathLinear(nn.Module):
    """All paths from degrees 0..l_in with an edge of degrees 0..l_edge into degrees 0..l_out, mixed by one matrix
    [channels of all paths into l3, C'_l3] for each l3; a bias on the scalars."""

    def __init__(
        self, channels_in: Sequence[int], channels_out: Sequence[int], *, l_edge: int, bias: bool, init: Initialisation
    ) -> None:
        super().__init__()
        self.channels_in, self.channels_out = tuple(channels_in), tuple(channels_out)
        self.paths = [paths_to(l3, len(channels_in) - 1, l_edge) for l3 in range(len(channels_out))]
        self.widths = [sum(channels_in[p.l1] for p in paths) for paths in self.paths]
        self.blocks = [_blocks(paths, channels_in) for paths in self.paths]
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(width, c_out)) for width, c_out in zip(self.widths, channels_out, strict=True)
        )
        self.bias = nn.Parameter(torch.zeros(channels_out[0])) if bias else None
        for weight, width in zip(self.weights, self.widths, strict=True):
            initialise(weight, width, init)

    @property
    def num_path_weights(self) -> int:
        """One weight for each path and channel; their order is l3, then the order of :func:`paths_to`, then channel."""
        return sum(self.widths)

    def _folded(self, weight: Tensor, block: _Block) -> Tensor:
        """Rows of the matrix that a block uses, times its coefficients."""
        column = _column(block.coefficients, block.widths, weight.device, weight.dtype)
        return weight[block.start : block.stop] * column


class DepthwiseTensorProductLinear(_PathLinear):
    """Depthwise tensor product with path weights of each edge, then a linear layer.

    Equiformer (Liao and Smidt 2023) calls the two a separable fully connected tensor product.
    """

    def forward(self, f: Sequence[Sequence[Tensor]], path_weights: Tensor, m_max: int) -> list[list[Tensor]]:
        """Couple edge-frame features ``f[l1][m]`` with the edge.

        Args:
            f: ``f[l][m]  # [E, 1 or 2, C_l]``, orders up to m_max.
            path_weights: [E, num_path_weights], from a radial function.
            m_max: the largest order wanted.

        Returns:
            ``out[l3][m]  # [E, 1 or 2, C'_l3]`` for m <= min(l3, m_max).
        """
        used = [[block for block in blocks if block.m <= m_max] for blocks in self.blocks]
        offsets = [sum(self.widths[:l3]) for l3 in range(len(self.widths))]
        ranges = [(offsets[l3] + b.start, offsets[l3] + b.stop) for l3, blocks in enumerate(used) for b in blocks]
        radial = iter(ranges_of(path_weights[:, None, :], ranges))
        return [self._degree(l3, f, radial, blocks) for l3, blocks in enumerate(used)]

    def _degree(self, l3: int, f: Sequence[Sequence[Tensor]], radial: Any, blocks: list[_Block]) -> list[Tensor]:
        out: list[Tensor] = []
        for block in blocks:
            coupled = torch.cat([f[degree][block.m] for degree in block.l1], -1) * next(radial)
            mixed = coupled @ self._folded(self.weights[l3], block)
            if block.even:
                out.append(mixed)
            else:
                out[block.m] = out[block.m] + _quarter_turn(mixed)
        if l3 == 0 and self.bias is not None:
            out[0] = out[0] + self.bias
        return out


class SharedTensorProductLinear(_PathLinear):
    """Tensor product whose path weights are parameters, then a linear layer: together one SO(2) linear layer."""

    def __init__(
        self, channels_in: Sequence[int], channels_out: Sequence[int], *, l_edge: int, bias: bool, init: Initialisation
    ) -> None:
        super().__init__(channels_in, channels_out, l_edge=l_edge, bias=bias, init=init)
        self.path_weights = nn.ParameterList(nn.Parameter(torch.empty(width)) for width in self.widths)
        for weight in self.path_weights:
            initialise(weight, 1, init)

    def forward(self, f: Sequence[Tensor], degrees: Sequence[int]) -> list[Tensor]:
        """Couple features grouped by order with the edge.

        Args:
            f: ``f[m]  # [E, 1 or 2, sum of C_l over l >= m]`` for all m <= max(degrees).
            degrees: the output degrees wanted, ascending.

        Returns:
            One tensor a degree wanted: [E, 2 l3 + 1, C'_l3], rows m-major.
        """
        scaled = {l3: self.path_weights[l3][:, None] * self.weights[l3] for l3 in degrees}
        rows: dict[int, list[Tensor]] = {l3: [] for l3 in degrees}
        for m in range(max(degrees) + 1):
            reached = [l3 for l3 in degrees if l3 >= m]
            matrix = self._order_matrix(m, {l3: scaled[l3] for l3 in reached})
            rows_of_m = 1 if m == 0 else 2
            mixed = (f[m].flatten(1) @ matrix).unflatten(1, (rows_of_m, matrix.shape[1] // rows_of_m))
            for l3, part in zip(reached, mixed.split([self.channels_out[l3] for l3 in reached], -1), strict=True):
                rows[l3].append(part)
        if self.bias is not None and 0 in rows:
            rows[0][0] = rows[0][0] + self.bias
        return [torch.cat(parts, 1) if len(parts) > 1 else parts[0] for parts in rows.values()]

    def _order_matrix(self, m: int, scaled: dict[int, Tensor]) -> Tensor:
        """Matrix of one order: A for m = 0, else [[A, -B], [B, A]] acting on the pair (+m, -m) laid side by side."""
        parts: dict[bool, list[Tensor]] = {True: [], False: []}
        for l3, weight in scaled.items():
            for even in (True, False) if m else (True,):
                parts[even].append(self._gathered(m, even, l3, weight))
        even_part = torch.cat(parts[True], 1)
        if m == 0:
            return even_part
        odd_part = torch.cat(parts[False], 1)
        return torch.cat((torch.cat((even_part, -odd_part), 1), torch.cat((odd_part, even_part), 1)), 0)

    def _gathered(self, m: int, even: bool, l3: int, weight: Tensor) -> Tensor:
        """Matrix [sum of C_l over l >= m, C'_l3]: paths from the same degree l1 added up."""
        out = weight.new_zeros(sum(self.channels_in[m:]), weight.shape[1])
        for block in self.blocks[l3]:
            if block.m == m and block.even == even:
                out = out.index_add(0, _rows(block.l1, self.channels_in, m, weight.device), self._folded(weight, block))
        return out
