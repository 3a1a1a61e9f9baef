"""Softmax over the edges that meet at an atom."""

from __future__ import annotations

import torch
from torch import Tensor

SMALL = 1e-8


def edge_softmax(logits: Tensor, target: Tensor, num_atoms: int, edge_weight: Tensor | None, *, smooth: bool) -> Tensor:
    """Attention weights over the edges into each atom.

    Without edge weights, exp(a_e) / sum exp(a).  With weights w (an envelope that falls to zero at the cutoff, or 0 on
    padding edges), w_e (w_e exp(a_e) / sum w exp(a)): w inside the sum makes a leaving neighbour vanish from the
    others' weights, w outside makes its own message vanish even where it is the only neighbour.

    Args:
        logits: [E, H].
        target: [E], the atom that each edge points to.
        num_atoms: N.
        edge_weight: [E] in [0, 1], or None.
        smooth: the weights vary smoothly to 0 (an envelope), so a sum may be tiny without being 0.

    Returns:
        Weights [E, H].
    """
    index = target[:, None].expand_as(logits)
    largest = logits.new_full((num_atoms, logits.shape[1]), -torch.inf)
    largest = largest.scatter_reduce(0, index, logits.detach(), "amax", include_self=False)
    weights = (logits - largest[target]).exp()
    if edge_weight is not None:
        weights = weights * edge_weight[:, None]
    total = weights.new_zeros(num_atoms, logits.shape[1]).index_add(0, target, weights)
    if edge_weight is None:
        return weights / total[target]
    # where all edges of an atom are padding the sum is 0; where its only neighbour is about to leave it is tiny, and the
    # addition bounds the derivatives up to the second (1 / SMALL^3 fits float32) while it moves weights by 1e-8 elsewhere
    total = total + SMALL if smooth else torch.where(total > 0, total, 1)
    return weights / total[target] * edge_weight[:, None]
