"""Tensor products with an edge's spherical harmonics, evaluated in the edge frame as SO(2) contractions.

A path (l1, l2 -> l3) couples features of degree l1 with Y_l2 of the edge.  In the edge frame Y_l2 has only m = 0, so
for each |m| the path is one number c_m (component normalisation, |Y_l2| = sqrt(2 l2 + 1)):

    l1 + l2 + l3 even:  out(+m) = c_m in(+m),  out(-m) =  c_m in(-m)
    l1 + l2 + l3 odd:   out(+m) = c_m in(-m),  out(-m) = -c_m in(+m),  nothing at m = 0

Odd paths tell a structure from its mirror image, as a cross product does.  Without them features of degree l change by
(-1)^l under inversion, as the spherical harmonics do, and scalars not at all: the symmetry is O(3) instead of SO(3).

Equiformer's depthwise tensor product followed by its linear layer is then one matrix product for every (l3, |m|); path
weights that do not depend on the edge are folded into the matrix.

Features in the edge frame are [E, 1 if m == 0 else 2, C] for each order, with rows (+m, -m).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from denskit.geometry.wigner_3j import wigner_3j


@dataclass(frozen=True)
class CouplingPath:
    """Coupling of degrees l1 (features) and l2 (edge) to l3."""

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


def paths_to(l3: int, l_in: int, l_edge: int, *, parity: bool = False) -> list[CouplingPath]:
    """All paths into l3: even ones by ascending l1, then odd ones by descending l1; with ``parity`` even ones alone.

    In this order the paths that exist at order m (l1 >= m) are one contiguous range for every m.
    """
    found = [
        CouplingPath(l1, l2, l3) for l1 in range(l_in + 1) for l2 in range(l_edge + 1) if abs(l1 - l2) <= l3 <= l1 + l2
    ]
    even = [path for path in found if path.even]
    odd = [path for path in reversed(found) if not path.even]
    return even if parity else even + odd


class _Ranges(torch.autograd.Function):
    """Overlapping ranges of an axis; the backward sums into one buffer instead of one per range."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, *ranges: tuple[int, int]) -> tuple[Tensor, ...]:
        ctx.dim, ctx.ranges, ctx.shape = dim, ranges, x.shape
        ctx.set_materialize_grads(False)
        return tuple(x.narrow(dim, start, stop - start) for start, stop in ranges)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        present = [(r, g) for r, g in zip(ctx.ranges, grads, strict=True) if g is not None]
        if not present:
            return (None,) * (2 + len(ctx.ranges))
        used, tensors = zip(*present, strict=True)
        return (_SumRanges.apply(ctx.shape, ctx.dim, used, *tensors), None, *(None,) * len(ctx.ranges))


class _SumRanges(torch.autograd.Function):
    """The transpose of :class:`_Ranges`."""

    @staticmethod
    def forward(ctx: Any, shape: torch.Size, dim: int, ranges: tuple[tuple[int, int], ...], *parts: Tensor) -> Tensor:
        ctx.dim, ctx.ranges = dim, ranges
        out = parts[0].new_zeros(shape)
        for (start, stop), part in zip(ranges, parts, strict=True):
            out.narrow(dim, start, stop - start).add_(part)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, None, *_Ranges.apply(grad, ctx.dim, *ctx.ranges))


def ranges_of(x: Tensor, ranges: Sequence[tuple[int, int]], dim: int = -1) -> tuple[Tensor, ...]:
    """Views of possibly overlapping ranges (start, stop) of an axis, with a cheap backward."""
    return _Ranges.apply(x, dim, *ranges)


def split_orders(x: Tensor) -> list[Tensor]:
    """Rows of m-major features [E, 2l+1, C] by |m|: [E, 1, C] and then [E, 2, C] each."""
    return list(x.split([1] + [2] * ((x.shape[1] - 1) // 2), dim=1))


def rows_of(m: int) -> int:
    """Rows of an order: 1 for m = 0, otherwise the pair (+m, -m)."""
    return 1 if m == 0 else 2


@dataclass(frozen=True)
class PathSlice:
    """Positions of one path at one |m|; even and odd as in the module's docstring."""

    l1: int
    even: bool
    coefficient: float  # c_m
    column: int  # first column in the block
    weight: int  # first column among all path weights
    width: int  # channels


@dataclass(frozen=True)
class CoupledBlock:
    """All paths into degree l3 at order m, side by side: [E, 1 or 2, width]."""

    l3: int
    m: int
    start: int  # its columns belong to rows start : start + width of the weight of l3
    width: int
    paths: tuple[PathSlice, ...]

    @property
    def coefficients(self) -> tuple[float, ...]:
        """c_m of every path."""
        return tuple(path.coefficient for path in self.paths)

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of every path."""
        return tuple(path.width for path in self.paths)


@dataclass(frozen=True)
class CouplePlan:
    """Layout of a depthwise tensor product with an edge, computed once from its channels."""

    channels: tuple[int, ...]  # C_l of the features, l = 0..l_max; the edge has the same degrees
    l_out: int  # highest l3
    m_max: int  # highest order wanted
    parity: bool = False  # even paths alone

    @cached_property
    def paths(self) -> tuple[tuple[CouplingPath, ...], ...]:
        """Paths into each l3, in the order of their weights."""
        l_max = len(self.channels) - 1
        return tuple(tuple(paths_to(l3, l_max, l_max, parity=self.parity)) for l3 in range(self.l_out + 1))

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Channels of all paths into each l3."""
        return tuple(sum(self.channels[p.l1] for p in paths) for paths in self.paths)

    @property
    def num_weights(self) -> int:
        """CouplingPath weights of an edge: by l3, then the order of :func:`paths_to`, then channel."""
        return sum(self.widths)

    @cached_property
    def blocks(self) -> tuple[CoupledBlock, ...]:
        """All blocks, by l3 and then m."""
        return tuple(self._block(l3, m) for l3 in range(self.l_out + 1) for m in range(min(l3, self.m_max) + 1))

    def _block(self, l3: int, m: int) -> CoupledBlock:
        before = sum(self.widths[:l3])
        slices: list[PathSlice] = []
        start = position = 0
        for path in self.paths[l3]:
            width = self.channels[path.l1]
            if path.l1 >= m and (path.even or m > 0):
                if not slices:
                    start = position
                assert position - start == sum(s.width for s in slices), "paths of an order lie side by side"
                weight = before + position
                slices.append(PathSlice(path.l1, path.even, path.coefficient(m), position - start, weight, width))
            position += width
        return CoupledBlock(l3, m, start, sum(s.width for s in slices), tuple(slices))


@cache
def couple_plan(channels: tuple[int, ...], l_out: int, m_max: int, parity: bool = False) -> CouplePlan:
    """The plan of a layout, cached."""
    return CouplePlan(channels, l_out, m_max, parity)


@cache
def spread(values: tuple[float, ...], counts: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Each value repeated, [sum(counts)]: coefficients of paths spread over their channels."""
    with torch.inference_mode(False):
        repeated = torch.tensor(values, dtype=torch.float64).repeat_interleave(torch.tensor(counts))
        return repeated.to(device=device, dtype=dtype)
