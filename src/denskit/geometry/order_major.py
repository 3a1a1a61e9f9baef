"""Features in the edge frame with their rows ordered by |m| (Passaro and Zitnick 2023, eSCN).

Features [E, K, C] have rows in *order-major* order: m = 0 for l = 0..l_max, then for each m > 0 first +m, then -m, each
for l = m..l_max.  The rows of one order are adjacent, so that a map that mixes the degrees of one order is one matrix
product: :class:`denskit.nn.so2_linear.SO2Linear`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from denskit.geometry.operations import reordered


@cache
def order_major(l_max: int, m_max: int) -> tuple[tuple[int, int, int], ...]:
    """(l, m, position) of each row; the position counts coefficients with |m| <= m_max, l first (m = -l..l)."""
    kept = [(l, m) for l in range(l_max + 1) for m in range(-min(l, m_max), min(l, m_max) + 1)]
    position = {key: k for k, key in enumerate(kept)}
    rows = [(l, 0) for l in range(l_max + 1)]
    for m in range(1, m_max + 1):
        rows += [(l, sign * m) for sign in (1, -1) for l in range(m, l_max + 1)]
    return tuple((l, m, position[l, m]) for l, m in rows)


@cache
def rows_of_degrees(l_max: int, m_max: int, degrees: tuple[int, ...]) -> tuple[int, ...]:
    """Order-major rows of some degrees."""
    return tuple(k for k, (l, _, _) in enumerate(order_major(l_max, m_max)) if l in degrees)


def pack_wigner(blocks: Sequence[Tensor], l_max: int, m_max: int) -> Tensor:
    """Matrix [E, K, (l_max + 1)^2] from packed node features (rows l * l + l + m) to order-major edge features.

    blocks: per degree [E, 2l+1, 2l+1], rows 0, +1, -1, ... as in :class:`denskit.geometry.edge_frame.EdgeFrames`.
    """
    size = (l_max + 1) ** 2
    rows: list[Tensor] = []
    where: dict[tuple[int, int], int] = {}  # row of each (l, m) kept
    for l, block in enumerate(blocks[: l_max + 1]):
        kept = 2 * min(l, m_max) + 1
        for k in range(kept):
            where[l, (k + 1) // 2 * (1 if k % 2 else -1)] = len(where)
        rows.append(F.pad(block[:, :kept], (l * l, size - (l + 1) ** 2)))
    order = [where[l, m] for l, m, _ in order_major(l_max, m_max)]
    return reordered(torch.cat(rows, 1), 1, order)
