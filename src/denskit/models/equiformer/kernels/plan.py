"""Layouts of the three edge operations, computed once from the channels of a layer.

Equiformer's message is three operations on edges with matrix products between them:

- ``couple``: features of both ends, added, rotated into the edge frame and multiplied by radial weights, path by path
  (see :mod:`denskit.geometry.so2`), laid out as one matrix for each (l3, |m|);
- ``gate``: SiLU on scalars, sigmoid gates on the rest, regrouped by |m|;
- ``aggregate``: values times attention weights, rotated back, added up at the target atoms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from torch import Tensor

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class GatePlan:
    """Layout of ``gate``.

    Its inputs are blocks [E, 1 or 2, C] by l and then m, as ``couple`` and the matrices after it give them: the first
    holds num_scalars scalars, then a gate for every channel of l >= 1, then num_logits numbers that pass; the others
    have widths[l - 1] channels.  Its outputs are one tensor [E, 1 or 2, C] for each m = 0..m_max, of the scalars
    (m = 0) and all degrees l >= max(m, 1) side by side, and then the logits [E, num_logits].
    """

    num_scalars: int
    widths: tuple[int, ...]  # channels of l = 1, 2, ...
    num_logits: int
    m_max: int

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """(l, m) of the inputs."""
        return tuple((l, m) for l in range(len(self.widths) + 1) for m in range(min(l, self.m_max) + 1))

    def column(self, l: int, m: int) -> int:
        """Where degree l >= 1 begins in the output of order m."""
        return sum(self.widths[max(m, 1) - 1 : l - 1]) + (self.num_scalars if m == 0 else 0)

    def width(self, m: int) -> int:
        """Columns of the output of order m."""
        return sum(self.widths[max(m, 1) - 1 :]) + (self.num_scalars if m == 0 else 0)


@dataclass(frozen=True)
class AggregatePlan:
    """Layout of ``aggregate``.

    Its inputs are values, one [E, 1 or 2, C] for each m = 0..m_max with all degrees >= m side by side, and attention
    weights [E, H]; heads divide the channels of a degree into H equal parts.  Its outputs are [N, 2l+1, C_l].
    """

    degrees: tuple[int, ...]  # ascending
    channels: tuple[int, ...]  # C_l of these degrees
    m_max: int

    def column(self, l: int, m: int) -> int:
        """Where degree l begins in the values of order m <= l."""
        return sum(c for degree, c in zip(self.degrees, self.channels, strict=True) if m <= degree < l)

    def width(self, m: int) -> int:
        """Columns of the values of order m."""
        return sum(c for degree, c in zip(self.degrees, self.channels, strict=True) if degree >= m)


@cache
def gate_plan(num_scalars: int, widths: tuple[int, ...], num_logits: int, m_max: int) -> GatePlan:
    """The plan of a layout, cached."""
    return GatePlan(num_scalars, widths, num_logits, m_max)


@cache
def aggregate_plan(degrees: tuple[int, ...], channels: tuple[int, ...], m_max: int) -> AggregatePlan:
    """The plan of a layout, cached."""
    return AggregatePlan(degrees, channels, m_max)
