"""The edge operations in plain PyTorch, differentiable to any order on any device: the reference of the kernels.

Wigner matrices are [E, 2l+1, 2l+1] for l = 0, 1, ..., rows m-major (0, +1, -1, ...).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from denskit.geometry.so2 import CoupledBlock, CouplePlan, ranges_of, split_orders, spread
from denskit.models.equiformer.kernels.plan import AggregatePlan, GatePlan, Tensors
from denskit.nn.activation import scaled_sigmoid, scaled_silu


def couple(
    plan: CouplePlan,
    at_source: Tensors,
    at_target: Tensors,
    source: Tensor,
    target: Tensor,
    wigner: Tensors,
    radial: Tensor,
) -> list[Tensor]:
    """Add features of both ends [N, 2l+1, C_l], rotate them into the edge frames, couple them with the edges.

    radial is [E, plan.num_weights].  Returns [E, 1 or 2, width] for each of plan.blocks.
    """
    rotated = []
    for l, (a, b) in enumerate(zip(at_source, at_target, strict=True)):
        both = a.index_select(0, source) + b.index_select(0, target)
        rows = 2 * min(l, plan.m_max) + 1
        rotated.append([both] if l == 0 else split_orders(wigner[l][:, :rows] @ both))
    ranges = [(b.paths[0].weight, b.paths[0].weight + b.width) for b in plan.blocks]
    weights = ranges_of(radial[:, None, :], ranges)
    return [_coupled(block, rotated, weight) for block, weight in zip(plan.blocks, weights, strict=True)]


def _coupled(block: CoupledBlock, rotated: Sequence[Tensors], weight: Tensor) -> Tensor:
    coefficients = spread(block.coefficients, block.widths, weight.device, weight.dtype)
    parts = [rotated[p.l1][block.m] if p.even else _quarter_rotation(rotated[p.l1][block.m]) for p in block.paths]
    return torch.cat(parts, -1) * (weight * coefficients)


def _quarter_rotation(x: Tensor) -> Tensor:
    """Rows (+m, -m) of x [E, 2, C] to (in(-m), -in(+m)), the effect of an odd path."""
    plus, minus = x.unbind(1)
    return torch.stack((minus, -plus), 1)


def gate(plan: GatePlan, mixed: Tensors) -> tuple[list[Tensor], Tensor]:
    """Blocks [E, 1 or 2, C] by (l, m) to features grouped by m, and the logits [E, num_logits]; see GatePlan."""
    by_degree: list[list[Tensor]] = [[] for _ in range(len(plan.widths) + 1)]
    for (l, _), block in zip(plan.blocks, mixed, strict=True):
        by_degree[l].append(block)
    scalars, gates, logits = by_degree[0][0].split([plan.num_scalars, sum(plan.widths), plan.num_logits], -1)
    gates = scaled_sigmoid(gates)
    grouped = []
    for m in range(plan.m_max + 1):
        first = max(m, 1)
        rows = [blocks[m] for blocks in by_degree[first:]]
        gated = [torch.cat(rows, -1) * gates[..., sum(plan.widths[: first - 1]) :]] if rows else []
        grouped.append(torch.cat([scaled_silu(scalars), *gated] if m == 0 else gated, -1))
    return grouped, logits[:, 0]


def aggregate(
    plan: AggregatePlan, values: Tensors, attention: Tensor, target: Tensor, num_atoms: int, wigner: Tensors
) -> list[Tensor]:
    """Weight values by attention [E, H], rotate them back, add them up at the targets; see AggregatePlan."""
    out = []
    for l, channels in zip(plan.degrees, plan.channels, strict=True):
        parts = [values[m].narrow(-1, plan.column(l, m), channels) for m in range(min(l, plan.m_max) + 1)]
        rows = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        heads = rows.unflatten(-1, (attention.shape[1], -1)) * attention[:, None, :, None]
        weighted = heads.flatten(-2)
        rotated = weighted if l == 0 else wigner[l][:, : rows.shape[1]].mT @ weighted
        out.append(rotated.new_zeros(num_atoms, 2 * l + 1, channels).index_add(0, target, rotated))
    return out
