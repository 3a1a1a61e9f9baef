"""``aggregate`` on CPUs: values times attention, turned back and summed at the target, without a buffer of edges.

out[target] += D^T (a v); trilinear in (v, a, D), and so are its derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from denskit.nn.fused.numba_common import inner, kernel, parts_of, run_parts
from denskit.nn.fused.numba_rows import add_scaled, at, dot, scaled, zero
from denskit.nn.fused.plan import AggregatePlan


@cache
def _tables(plan: AggregatePlan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Degrees [D, 2] (l, channels), where each begins [D, m_max + 1] in values[m], widths of values[m]."""
    columns = [[plan.column(l, m) for m in range(plan.m_max + 1)] for l in plan.degrees]
    widths = [plan.width(m) for m in range(plan.m_max + 1)]
    degrees = np.array(list(zip(plan.degrees, plan.channels, strict=True)), np.int64)
    return degrees, np.array(columns, np.int64), np.array(widths, np.int64)


@inner
def _place(e, row, m, column, widths):
    """Where an edge's row (0, +1, -1, +2, ...) of a degree begins in values[m]."""
    return e * widths[0] + column if m == 0 else (2 * e + (row + 1) % 2) * widths[m] + column


@inner
def _turn(out, x, t, wigner, e, l, rows, width):
    """out[row] = sum_k D[row, k] x[t, k]."""
    size = 2 * l + 1
    zero(out, 0, rows * width)
    for row in range(rows):
        for k in range(size):
            d = wigner[np.uint64((e * size + row) * size + k)]
            add_scaled(out, row * width, d, x, (t * size + k) * width, width)


@inner
def _turn_back(out, t, x, wigner, e, l, rows, width):
    """out[t, k] += sum_row D[row, k] x[row]."""
    size = 2 * l + 1
    for row in range(rows):
        for k in range(size):
            d = wigner[np.uint64((e * size + row) * size + k)]
            add_scaled(out, (t * size + k) * width, d, x, row * width, width)


@inner
def _outer(out, e, x, y, t, l, rows, width):
    """out[e, row, k] += x[row] . y[t, k]."""
    size = 2 * l + 1
    for row in range(rows):
        for k in range(size):
            total = dot(x, row * width, y, (t * size + k) * width, width)
            out[np.uint64((e * size + row) * size + k)] += total


@kernel
def _forward(
    first, last, values, attention, heads, target, wigner, degrees, columns, widths, m_max, out, room
):  # fmt: skip
    weighted = room[0]
    for e in range(first, last):
        for n in range(len(degrees)):
            l, width = degrees[n]
            rows, size = 2 * min(l, m_max) + 1, width // heads
            for row in range(rows):
                m = (row + 1) // 2
                v = _place(e, row, m, columns[n, m], widths)
                for head in range(heads):
                    a = attention[np.uint64(e * heads + head)]
                    scaled(weighted, row * width + head * size, a, at(values[m], attention), v + head * size, size)
            _turn_back(at(out[n], attention), target[e], weighted, at(wigner[l], attention), e, l, rows, width)


@kernel
def _backward(
    first, last, values, attention, heads, target, wigner, degrees, columns, widths, m_max,
    grads, g_values, g_attention, g_wigner, room,
):  # fmt: skip
    weighted, u = room[0], room[1]
    for e in range(first, last):
        zero(g_attention, e * heads, heads)
        for n in range(len(degrees)):
            l, width = degrees[n]
            rows, size = 2 * min(l, m_max) + 1, width // heads
            _turn(u, at(grads[n], attention), target[e], at(wigner[l], attention), e, l, rows, width)
            for row in range(rows):
                m = (row + 1) // 2
                x, g_x, v = (
                    at(values[m], attention),
                    at(g_values[m], attention),
                    _place(e, row, m, columns[n, m], widths),
                )
                for head in range(heads):
                    k, a = head * size, attention[np.uint64(e * heads + head)]
                    scaled(g_x, v + k, a, u, row * width + k, size)
                    scaled(weighted, row * width + k, a, x, v + k, size)
                    g_attention[np.uint64(e * heads + head)] += dot(x, v + k, u, row * width + k, size)
            if l:
                _outer(at(g_wigner[l], attention), e, weighted, at(grads[n], attention), target[e], l, rows, width)


@kernel
def _double_backward(
    first, last, values, attention, heads, target, wigner, degrees, columns, widths, m_max,
    grads, h_values, h_attention, h_wigner, d_values, d_attention, d_wigner, d_grads, room,
):  # fmt: skip
    weighted, changed, u, h_u = room[0], room[1], room[2], room[3]
    for e in range(first, last):
        t = target[e]
        zero(d_attention, e * heads, heads)
        for n in range(len(degrees)):
            l, width = degrees[n]
            rows, size = 2 * min(l, m_max) + 1, width // heads
            _turn(u, at(grads[n], attention), t, at(wigner[l], attention), e, l, rows, width)
            _turn(h_u, at(grads[n], attention), t, at(h_wigner[l], attention), e, l, rows, width)
            for row in range(rows):
                m = (row + 1) // 2
                x, h_x, d_x = at(values[m], attention), at(h_values[m], attention), at(d_values[m], attention)
                v = _place(e, row, m, columns[n, m], widths)
                for head in range(heads):
                    k, i = v + head * size, row * width + head * size
                    a, h_a = attention[np.uint64(e * heads + head)], h_attention[np.uint64(e * heads + head)]
                    scaled(d_x, k, h_a, u, i, size)
                    add_scaled(d_x, k, a, h_u, i, size)
                    total = dot(h_x, k, u, i, size) + dot(x, k, h_u, i, size)
                    d_attention[np.uint64(e * heads + head)] += total
                    scaled(weighted, i, a, x, k, size)
                    scaled(changed, i, a, h_x, k, size)
                    add_scaled(changed, i, h_a, x, k, size)
            _turn_back(at(d_grads[n], attention), t, changed, at(wigner[l], attention), e, l, rows, width)
            _turn_back(at(d_grads[n], attention), t, weighted, at(h_wigner[l], attention), e, l, rows, width)
            if l:
                _outer(at(d_wigner[l], attention), e, changed, at(grads[n], attention), t, l, rows, width)


def aggregate_forward(
    plan: AggregatePlan,
    values: Sequence[Tensor],
    attention: Tensor,
    target: Tensor,
    num_atoms: int,
    wigner: Sequence[Tensor],
) -> list[Tensor]:
    """See :func:`denskit.nn.fused.reference.aggregate`."""
    shapes = [(num_atoms, 2 * l + 1, c) for l, c in zip(plan.degrees, plan.channels, strict=True)]
    inputs, parts = _inputs(plan, values, attention, target, wigner), parts_of(len(target))
    sums = [[attention.new_zeros(shape) for shape in shapes] for _ in parts]
    run_parts(_forward, parts, lambda part: (*inputs, sums[part], _room(plan, attention)))
    return _total(sums)


def aggregate_backward(
    plan: AggregatePlan,
    values: Sequence[Tensor],
    attention: Tensor,
    target: Tensor,
    wigner: Sequence[Tensor],
    grads: Sequence[Tensor],
) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Gradients with respect to values, attention and wigner."""
    g_values, g_attention = [x.new_empty(x.shape) for x in values], attention.new_empty(attention.shape)
    g_wigner = [x.new_zeros(x.shape) for x in wigner]
    inputs = _inputs(plan, values, attention, target, wigner)
    given, results = grads, (g_values, g_attention, g_wigner)
    run_parts(_backward, parts_of(len(target)), lambda _: (*inputs, given, *results, _room(plan, attention)))
    return g_values, g_attention, g_wigner


def aggregate_double_backward(
    plan: AggregatePlan,
    values: Sequence[Tensor],
    attention: Tensor,
    target: Tensor,
    wigner: Sequence[Tensor],
    grads: Sequence[Tensor],
    h_values: Sequence[Tensor],
    h_attention: Tensor,
    h_wigner: Sequence[Tensor],
) -> tuple[list[Tensor], Tensor, list[Tensor], list[Tensor]]:
    """Gradients of :func:`aggregate_backward` with respect to values, attention, wigner and grads."""
    d_values, d_attention = [x.new_empty(x.shape) for x in values], attention.new_empty(attention.shape)
    d_wigner = [x.new_zeros(x.shape) for x in wigner]
    inputs, parts = _inputs(plan, values, attention, target, wigner), parts_of(len(target))
    given = (grads, h_values, h_attention, h_wigner)
    results = (d_values, d_attention, d_wigner)
    sums = [[grad.new_zeros(grad.shape) for grad in grads] for _ in parts]
    run_parts(_double_backward, parts, lambda part: (*inputs, *given, *results, sums[part], _room(plan, attention)))
    return d_values, d_attention, d_wigner, _total(sums)


def _total(sums: Sequence[list[Tensor]]) -> list[Tensor]:
    first, *others = sums
    for other in others:
        for total, more in zip(first, other, strict=True):
            total += more
    return first


def _inputs(
    plan: AggregatePlan, values: Sequence[Tensor], attention: Tensor, target: Tensor, wigner: Sequence[Tensor]
) -> tuple[object, ...]:
    heads = attention.shape[1]
    return (values, attention, heads, target, wigner, *_tables(plan), plan.m_max)


def _room(plan: AggregatePlan, like: Tensor) -> np.ndarray:
    """Room for four sets of rows of one degree of one edge."""
    sizes = [(2 * l + 1) * c for l, c in zip(plan.degrees, plan.channels, strict=True)]
    return torch.empty(4, max(sizes), dtype=like.dtype).numpy()
