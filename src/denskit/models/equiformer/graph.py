"""Equiformer's edges: shared radial functions of an edge and its reverse, and the three edge operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from denskit.geometry.edge_pairs import to_edges
from denskit.geometry.so2 import CouplePlan
from denskit.models.equiformer.kernels import KERNELS, EdgeOperations, choose_kernels
from denskit.models.equiformer.kernels.plan import AggregatePlan
from denskit.models.graph import EdgeGraph


@dataclass(frozen=True, kw_only=True)
class EquiformerGraph(EdgeGraph):
    """The edges of a batch; where they are known in pairs, ``basis`` is [E/2, num_basis]."""

    pairs: Tensor | None = None  # [E/2, 2] rows of each edge and its reverse
    pair: Tensor | None = None  # [E] for each edge the row of its pair

    def radial(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """A function of the radial basis for all edges [E, C], computed once for an edge and its reverse."""
        values = function(self.basis)
        return values if self.pairs is None or self.pair is None else to_edges(values, self.pairs, self.pair)

    @property
    def kernels(self) -> EdgeOperations:
        """The edge operations for ``execution`` and the device."""
        return KERNELS[choose_kernels(self.execution.kernels, self.target.device)]

    def couple(
        self, plan: CouplePlan, at_source: Sequence[Tensor], at_target: Sequence[Tensor], radial: Tensor
    ) -> list[Tensor]:
        """Features [N, 2l+1, C_l] of both ends times the edges: :func:`.kernels.reference.couple`."""
        return self.kernels.couple(plan, at_source, at_target, self.source, self.target, self.frames.wigner, radial)

    def aggregate(self, plan: AggregatePlan, values: Sequence[Tensor], attention: Tensor) -> list[Tensor]:
        """Weighted values, rotated back and summed at the targets: :func:`.kernels.reference.aggregate`."""
        return self.kernels.aggregate(plan, values, attention, self.target, self.num_atoms, self.frames.wigner)

    def degree(self) -> Tensor:
        """Sum of the edge weights at each atom [N]: its number of neighbours, smooth where there is an envelope."""
        weight = self.frames.length.new_ones(self.target.shape[0]) if self.weight is None else self.weight
        return weight.new_zeros(self.num_atoms).index_add(0, self.target, weight)
