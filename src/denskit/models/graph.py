"""The edges of a batch as the layers of a model read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from denskit.geometry.edge_frame import EdgeFrames
from denskit.models.execution import Execution
from denskit.models.recompute import EdgeChunk


@dataclass(frozen=True, kw_only=True)
class EdgeGraph:
    """Edges with their frames, radial basis and weights, computed once per forward."""

    frames: EdgeFrames
    basis: Tensor  # [E, num_basis]
    source: Tensor  # [E]
    target: Tensor  # [E]
    weight: Tensor | None  # [E] in [0, 1]: envelope times mask; None: all edges count fully
    enveloped: bool  # the weights hold an envelope that falls to 0 at the cutoff
    num_atoms: int
    execution: Execution
    chunks: Sequence[EdgeChunk] = ()  # chunks of edges; empty: all edges at once

    def sum_over_edges(self, x: Tensor) -> Tensor:
        """Sum [E, R, C] at the target atoms: [N, R, C]."""
        return x.new_zeros(self.num_atoms, *x.shape[1:]).index_add(0, self.target, x)
