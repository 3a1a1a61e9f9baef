"""Pairs of an edge and its reverse: functions of the distance are computed once for both.

Neighbour lists hold every pair of atoms twice, i -> j and j -> i.  Equiformer's radial functions depend on the distance
alone and are a fifth of its arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from denskit.batch import Batch
from denskit.geometry.operations import traced

SHIFT_BITS, ATOM_BITS = 10, 16  # of the search keys of edges: 3 shifts and 2 atoms in 62 bits


def edge_pairs(batch: Batch) -> Tensor | None:
    """Rows [E/2, 2] of each edge and its reverse, or None where the search is impossible or slow.

    None on a GPU, in a traced graph, for edges in another order than that of ``build_neighbors``, for edges without a
    reverse (max_neighbors, padding), and for huge batches.
    """
    edges = batch.built_edges
    if edges.pairs is not None:
        return edges.pairs
    if batch.positions.device.type != "cpu" or traced():
        return None
    source, target = edges.index
    shift, count = edges.shift, len(source)
    limit = 1 << (SHIFT_BITS - 1)
    if count == 0 or count % 2 or batch.num_atoms >= 1 << ATOM_BITS or int(shift.abs().max()) >= limit:
        return None
    places = torch.tensor([1 << 2 * SHIFT_BITS, 1 << SHIFT_BITS, 1])
    atoms = 1 << 3 * SHIFT_BITS
    key = ((target << ATOM_BITS) + source) * atoms + ((shift + limit) * places).sum(1)
    wanted = ((source << ATOM_BITS) + target) * atoms + ((limit - shift) * places).sum(1)
    order = wanted.argsort()
    if not bool((key[1:] > key[:-1]).all()) or not torch.equal(wanted[order], key):
        return None
    # the reverse of edge order[k] is edge k
    rows = torch.arange(count)
    reverse = torch.empty_like(order).scatter_(0, order, rows)
    first = (rows < reverse).nonzero()[:, 0]
    return torch.stack((first, reverse[first]), 1)


def pair_of_edge(pairs: Tensor) -> Tensor:
    """For each edge [E] the row of its pair."""
    numbers = torch.arange(len(pairs), device=pairs.device)
    return torch.empty_like(pairs).view(-1).scatter(0, pairs.view(-1), numbers.repeat_interleave(2))


def to_edges(x: Tensor, pairs: Tensor, pair: Tensor) -> Tensor:
    """Values of pairs [E/2, C] for both of their edges [E, C]; differentiable to any order."""
    return _ToEdges.apply(x, pairs, pair)


class _ToEdges(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pairs: Tensor, pair: Tensor) -> Tensor:
        ctx.save_for_backward(pairs, pair)
        return x.index_select(0, pair)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _ToPairs.apply(grad, *ctx.saved_tensors), None, None


class _ToPairs(torch.autograd.Function):
    """Sums over the two edges of each pair by two gathers and a sum, faster than index_add."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pairs: Tensor, pair: Tensor) -> Tensor:
        ctx.save_for_backward(pairs, pair)
        return x.index_select(0, pairs[:, 0]) + x.index_select(0, pairs[:, 1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _ToEdges.apply(grad, *ctx.saved_tensors), None, None
