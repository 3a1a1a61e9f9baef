"""Softmax over the edges that meet at an atom."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SINK = 1e-8


def edge_softmax(
    logits: Tensor, target: Tensor, num_atoms: int, edge_weight: Tensor | None, *, smooth: bool, sink: float = SINK
) -> Tensor:
    """Attention weights [E, H] over the edges into each atom, from logits [E, H].

    Without edge weights: exp(a_e) / sum exp(a).  With weights that fall smoothly to 0 (an envelope):  w_e (w_e
    exp(a_e)) / (sink + sum w exp(a)).  w inside the sum removes a leaving neighbour from the others' weights, w outside
    removes its own message even if it is the only neighbour, and the sink keeps second derivatives finite where the sum
    is tiny.  Weights of 0 and 1 (padding) only select edges.

    ``target`` [E]: the atom that each edge points to; ``edge_weight`` [E] in [0, 1], ``smooth`` if they hold an
    envelope; ``sink``: the weight of an absent neighbour.
    """
    if edge_weight is None:
        weights, total = _softmax_parts(logits, target, num_atoms)
        return weights / total[target]
    weight = edge_weight[:, None]
    if smooth:
        # the shift cancels exactly, in the sink's term too, so it may be detached; it is the logarithm of the largest
        # term, not the largest logit: an edge that just enters the cutoff must not make the other terms underflow
        index = target[:, None].expand_as(logits)
        floor = logits.new_full((num_atoms, logits.shape[1]), math.log(sink))
        shift = floor.scatter_reduce(0, index, logits.detach() + weight.detach().log(), "amax")
        weights = weight * torch.where(weight > 0, logits - shift[target], 0).exp()  # 0 times inf would be NaN
        total = (sink * (-shift).exp()).index_add(0, target, weights)
        return weights / total[target] * weight
    weights, total = _softmax_parts(torch.where(weight > 0, logits, -torch.inf), target, num_atoms)
    return weights / torch.where(total > 0, total, 1)[target]


def _softmax_parts(logits: Tensor, target: Tensor, num_atoms: int) -> tuple[Tensor, Tensor]:
    """exp(logits - largest) [E, H] and its sums [N, H]; atoms without edges have a sum of 0."""
    index = target[:, None].expand_as(logits)
    largest = logits.new_full((num_atoms, logits.shape[1]), -torch.inf)
    largest = largest.scatter_reduce(0, index, logits.detach(), "amax", include_self=False)
    largest = torch.where(largest.isfinite(), largest, 0)
    weights = (logits - largest[target]).exp()
    return weights, weights.new_zeros(num_atoms, logits.shape[1]).index_add(0, target, weights)
