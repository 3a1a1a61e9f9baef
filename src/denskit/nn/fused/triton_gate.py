"""``gate`` in Triton: forward, backward, and the backward of the backward.

Everything is element by element.  One program does 256 pairs of an edge and a channel of one part: the scalars, one of
the degrees, or the logits.  Neighbouring threads have neighbouring channels, whatever their number; a gate is computed
once for all rows of its channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from denskit.geometry.so2 import rows_of
from denskit.nn.activation import SIGMOID_FACTOR, SILU_FACTOR
from denskit.nn.fused.plan import GatePlan
from denskit.nn.fused.triton_common import contiguous, count, launch, pick

SILU, SIGMOID = tl.constexpr(SILU_FACTOR), tl.constexpr(SIGMOID_FACTOR)
ELEMENTS = tl.constexpr(256)

# In the table of a plan, a part is (kind, channels, first of its columns in the first input, rows); a row is (input,
# numbers of an edge in it, start among them, output, numbers of an edge in it, start among them).  Of scalars and
# logits the one row is the columns themselves; of a degree the columns are its gates.
KIND, CHANNELS, COLUMN, ROWS = (tl.constexpr(i) for i in range(4))
SCALARS, DEGREE, LOGITS = (tl.constexpr(i) for i in range(3))
WHICH, SIZE, START = (tl.constexpr(i) for i in range(3))
IN, OUT = tl.constexpr(0), tl.constexpr(1)


@cache
def _parts(plan: GatePlan) -> tuple[Any, ...]:
    """The table of a plan."""
    num_gates = sum(plan.widths)
    total = plan.num_scalars + num_gates + plan.num_logits
    scalars = (((0, total, 0), (0, plan.width(0), 0)),)
    parts: list[tuple[Any, ...]] = [(SCALARS.value, plan.num_scalars, 0, scalars)]
    for l, width in enumerate(plan.widths, 1):
        rows = []
        for m in range(min(l, plan.m_max) + 1):
            for row in range(rows_of(m)):
                taken = (plan.blocks.index((l, m)), rows_of(m) * width, row * width)
                made = (m, rows_of(m) * plan.width(m), row * plan.width(m) + plan.column(l, m))
                rows.append((taken, made))
        parts.append((DEGREE.value, width, plan.num_scalars + sum(plan.widths[: l - 1]), tuple(rows)))
    first = plan.num_scalars + num_gates
    logits = (((0, total, first), (plan.m_max + 1, plan.num_logits, 0)),)
    parts.append((LOGITS.value, plan.num_logits, first, logits))
    return tuple(part for part in parts if part[1] > 0)


@triton.jit
def _at(tensors: tl.tuple, edge: tl.tensor, c: tl.tensor, ROW: tl.constexpr) -> tl.tensor:
    """Pointers to channels c of a row."""
    return tensors[pick(ROW, WHICH)] + edge * pick(ROW, SIZE) + pick(ROW, START) + c


@triton.jit
def _elements(num_edges: tl.tensor, C: tl.constexpr) -> tl.tuple:
    """Edges, channels and mask of this program."""
    index = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    return index // C, index % C, index < num_edges * C


@triton.jit
def _sigmoid(x: tl.tensor) -> tl.tensor:
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _forward(mixed: tl.tuple, out: tl.tuple, num_edges: tl.tensor, PARTS: tl.constexpr, TOTAL: tl.constexpr) -> None:
    for part in tl.static_range(count(PARTS)):
        if tl.program_id(1) == part:
            _forward_part(mixed, out, num_edges, pick(PARTS, part), TOTAL)


@triton.jit
def _forward_part(
    mixed: tl.tuple, out: tl.tuple, num_edges: tl.tensor, PART: tl.constexpr, TOTAL: tl.constexpr
) -> None:
    edge, c, mask = _elements(num_edges, pick(PART, CHANNELS))
    x = tl.load(mixed[0] + edge * TOTAL + pick(PART, COLUMN) + c, mask=mask, other=0.0)
    if pick(PART, KIND) == SCALARS:
        tl.store(_at(out, edge, c, pick(PART, ROWS, 0, OUT)), x * _sigmoid(x) * SILU, mask=mask)
    elif pick(PART, KIND) == LOGITS:
        tl.store(_at(out, edge, c, pick(PART, ROWS, 0, OUT)), x, mask=mask)
    else:
        gate = _sigmoid(x) * SIGMOID
        for k in tl.static_range(count(PART, ROWS)):
            value = tl.load(_at(mixed, edge, c, pick(PART, ROWS, k, IN)), mask=mask, other=0.0)
            tl.store(_at(out, edge, c, pick(PART, ROWS, k, OUT)), gate * value, mask=mask)


@triton.jit
def _backward(
    mixed: tl.tuple,
    grads: tl.tuple,
    mixed_grad: tl.tuple,
    num_edges: tl.tensor,
    PARTS: tl.constexpr,
    TOTAL: tl.constexpr,
) -> None:
    for part in tl.static_range(count(PARTS)):
        if tl.program_id(1) == part:
            _backward_part(mixed, grads, mixed_grad, num_edges, pick(PARTS, part), TOTAL)


@triton.jit
def _backward_part(
    mixed: tl.tuple,
    grads: tl.tuple,
    mixed_grad: tl.tuple,
    num_edges: tl.tensor,
    PART: tl.constexpr,
    TOTAL: tl.constexpr,
) -> None:
    edge, c, mask = _elements(num_edges, pick(PART, CHANNELS))
    column = edge * TOTAL + pick(PART, COLUMN) + c
    x = tl.load(mixed[0] + column, mask=mask, other=0.0)
    s = _sigmoid(x)
    if pick(PART, KIND) == DEGREE:
        gx = tl.zeros_like(x)
        for k in tl.static_range(count(PART, ROWS)):
            gy = tl.load(_at(grads, edge, c, pick(PART, ROWS, k, OUT)), mask=mask, other=0.0) * SIGMOID
            gx += gy * tl.load(_at(mixed, edge, c, pick(PART, ROWS, k, IN)), mask=mask, other=0.0)
            tl.store(_at(mixed_grad, edge, c, pick(PART, ROWS, k, IN)), gy * s, mask=mask)
        gx *= s * (1 - s)
    else:
        gx = tl.load(_at(grads, edge, c, pick(PART, ROWS, 0, OUT)), mask=mask, other=0.0)
        if pick(PART, KIND) == SCALARS:
            gx *= s * (1 + x * (1 - s)) * SILU
    tl.store(mixed_grad[0] + column, gx, mask=mask)


@triton.jit
def _double_backward(
    mixed: tl.tuple,
    grads: tl.tuple,
    h_mixed: tl.tuple,
    mixed_grad: tl.tuple,
    grads_grad: tl.tuple,
    num_edges: tl.tensor,
    PARTS: tl.constexpr,
    TOTAL: tl.constexpr,
) -> None:
    for part in tl.static_range(count(PARTS)):
        if tl.program_id(1) == part:
            _double_backward_part(mixed, grads, h_mixed, mixed_grad, grads_grad, num_edges, pick(PARTS, part), TOTAL)


@triton.jit
def _double_backward_part(
    mixed: tl.tuple,
    grads: tl.tuple,
    h_mixed: tl.tuple,
    mixed_grad: tl.tuple,
    grads_grad: tl.tuple,
    num_edges: tl.tensor,
    PART: tl.constexpr,
    TOTAL: tl.constexpr,
) -> None:
    """With s the sigmoid of x: s' = s (1 - s), s'' = s' (1 - 2 s), silu' = s + x s', silu'' = 2 s' + x s''."""
    edge, c, mask = _elements(num_edges, pick(PART, CHANNELS))
    column = edge * TOTAL + pick(PART, COLUMN) + c
    x = tl.load(mixed[0] + column, mask=mask, other=0.0)
    hx = tl.load(h_mixed[0] + column, mask=mask, other=0.0)
    s = _sigmoid(x)
    slope = s * (1 - s)
    bend = slope * (1 - 2 * s)
    dx = tl.zeros_like(x)
    if pick(PART, KIND) == DEGREE:
        for k in tl.static_range(count(PART, ROWS)):
            value = tl.load(_at(mixed, edge, c, pick(PART, ROWS, k, IN)), mask=mask, other=0.0)
            h_value = tl.load(_at(h_mixed, edge, c, pick(PART, ROWS, k, IN)), mask=mask, other=0.0)
            gy = tl.load(_at(grads, edge, c, pick(PART, ROWS, k, OUT)), mask=mask, other=0.0) * SIGMOID
            dx += gy * (hx * value * bend + h_value * slope)
            tl.store(_at(mixed_grad, edge, c, pick(PART, ROWS, k, IN)), gy * hx * slope, mask=mask)
            dy = (hx * value * slope + h_value * s) * SIGMOID
            tl.store(_at(grads_grad, edge, c, pick(PART, ROWS, k, OUT)), dy, mask=mask)
    else:
        dy = hx
        if pick(PART, KIND) == SCALARS:
            gy = tl.load(_at(grads, edge, c, pick(PART, ROWS, 0, OUT)), mask=mask, other=0.0)
            dx = hx * gy * (2 * slope + x * bend) * SILU
            dy = hx * (s + x * slope) * SILU
        tl.store(_at(grads_grad, edge, c, pick(PART, ROWS, 0, OUT)), dy, mask=mask)
    tl.store(mixed_grad[0] + column, dx, mask=mask)


def gate_forward(plan: GatePlan, mixed: Sequence[Tensor]) -> list[Tensor]:
    """See :func:`denskit.nn.fused.reference.gate`; the logits are the last of the list."""
    edges = len(mixed[0])
    grouped = [mixed[0].new_empty(edges, rows_of(m), plan.width(m)) for m in range(plan.m_max + 1)]
    out = (*grouped, mixed[0].new_empty(edges, plan.num_logits))
    _launch(_forward, plan, contiguous(mixed), out)
    return list(out)


def gate_backward(plan: GatePlan, mixed: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of mixed from those of the outputs."""
    mixed = contiguous(mixed)
    mixed_grad = tuple(torch.empty_like(x) for x in mixed)
    _launch(_backward, plan, mixed, contiguous(grads), mixed_grad)
    return list(mixed_grad)


def gate_double_backward(
    plan: GatePlan, mixed: Sequence[Tensor], grads: Sequence[Tensor], h_mixed: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of mixed and grads from those (h) of what gate_backward returned."""
    mixed, grads = contiguous(mixed), contiguous(grads)
    mixed_grad, grads_grad = (tuple(torch.empty_like(x) for x in tensors) for tensors in (mixed, grads))
    _launch(_double_backward, plan, mixed, grads, contiguous(h_mixed), mixed_grad, grads_grad)
    return list(mixed_grad), list(grads_grad)


def _launch(kernel: Any, plan: GatePlan, *tensors: tuple[Tensor, ...]) -> None:
    edges, parts = len(tensors[0][0]), _parts(plan)
    most = max(part[CHANNELS.value] for part in parts)
    grid = (triton.cdiv(edges * most, ELEMENTS.value), len(parts))
    launch(kernel, grid, *tensors, edges, PARTS=parts, TOTAL=tensors[0][0].shape[-1], num_warps=4)
