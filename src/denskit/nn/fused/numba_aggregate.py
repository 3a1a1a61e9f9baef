"""``aggregate`` on CPUs: values times attention, turned back and summed at the target, without a buffer of edges.

out[target] += D^T (a v); trilinear in (v, a, D), and so are its derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from denskit.nn.fused.numba_common import array, arrays, inner, kernel, parts_of, run_parts
from denskit.nn.fused.plan import AggregatePlan


@cache
def _tables(plan: AggregatePlan) -> tuple[np.ndarray, np.ndarray]:
    """Degrees [D, 2] (l, channels), and where each begins [D, m_max + 1] in values[m]."""
    columns = [[plan.column(l, m) for m in range(plan.m_max + 1)] for l in plan.degrees]
    return np.array(list(zip(plan.degrees, plan.channels, strict=True)), np.int64), np.array(columns, np.int64)


@inner
def _order(row):
    """M of a row in the order 0, +1, -1, +2, ..., and its place in the pair."""
    return (row + 1) // 2, (row + 1) % 2 if row else 0


@inner
def _turn(out, x, wigner, e, rows):
    """Rows of the flat buffer: out[row] = sum_k D[row, k] x[k]."""
    size, width = x.shape
    for row in range(rows):
        turned = out[row * width : (row + 1) * width]
        turned[:] = 0
        for k in range(size):
            d, part = wigner[e, row, k], x[k]
            for c in range(width):
                turned[c] += d * part[c]


@inner
def _turn_back(out, x, wigner, e, rows):
    """out[k] += sum_row D[row, k] x[row], x in a flat buffer."""
    size, width = out.shape
    for k in range(size):
        total = out[k]
        for row in range(rows):
            d, part = wigner[e, row, k], x[row * width : (row + 1) * width]
            for c in range(width):
                total[c] += d * part[c]


@inner
def _outer(out, e, x, y, rows):
    """out[e, row, k] += x[row] . y[k], x in a flat buffer."""
    size, width = y.shape
    for row in range(rows):
        part = x[row * width : (row + 1) * width]
        for k in range(size):
            other = y[k]
            total = part[0] * other[0]
            for c in range(1, width):
                total += part[c] * other[c]
            out[e, row, k] += total


@kernel
def _forward(first, last, values, attention, target, wigner, degrees, columns, m_max, out, room):
    heads, weighted = attention.shape[1], room[0]
    for e in range(first, last):
        for n in range(len(degrees)):
            l, width = degrees[n]
            rows, size = 2 * min(l, m_max) + 1, width // heads
            for row in range(rows):
                m, pair = _order(row)
                v = values[m][e, pair, columns[n, m] : columns[n, m] + width]
                for head in range(heads):
                    a, begin = attention[e, head], head * size
                    part, w = v[begin : begin + size], weighted[row * width + begin : row * width + begin + size]
                    for c in range(size):
                        w[c] = a * part[c]
            _turn_back(out[n][target[e]], weighted, wigner[l], e, rows)


@kernel
def _backward(
    first, last, values, attention, target, wigner, degrees, columns, m_max,
    grads, g_values, g_attention, g_wigner, room,
):  # fmt: skip
    heads, weighted, u = attention.shape[1], room[0], room[1]
    for e in range(first, last):
        g_attention[e, :] = 0
        for n in range(len(degrees)):
            l, width = degrees[n]
            rows, size = 2 * min(l, m_max) + 1, width // heads
            g = grads[n][target[e]]
            _turn(u, g, wigner[l], e, rows)
            for row in range(rows):
                m, pair = _order(row)
                v = values[m][e, pair, columns[n, m] : columns[n, m] + width]
                g_v = g_values[m][e, pair, columns[n, m] : columns[n, m] + width]
                for head in range(heads):
                    begin, end = head * size, (head + 1) * size
                    a, total = attention[e, head], attention[e, head] * 0
                    part, g_part = v[begin:end], g_v[begin:end]
                    w = weighted[row * width + begin : row * width + end]
                    turned = u[row * width + begin : row * width + end]
                    for c in range(size):
                        g_part[c] = a * turned[c]
                        w[c] = a * part[c]
                        total += part[c] * turned[c]
                    g_attention[e, head] += total
            if l:
                _outer(g_wigner[l], e, weighted, g, rows)


@kernel
def _double_backward(
    first, last, values, attention, target, wigner, degrees, columns, m_max,
    grads, h_values, h_attention, h_wigner, d_values, d_attention, d_wigner, d_grads, room,
):  # fmt: skip
    heads, weighted, changed, u, h_u = attention.shape[1], room[0], room[1], room[2], room[3]
    for e in range(first, last):
        d_attention[e, :] = 0
        for n in range(len(degrees)):
            l, width = degrees[n]
            rows, size = 2 * min(l, m_max) + 1, width // heads
            g, d_g = grads[n][target[e]], d_grads[n][target[e]]
            _turn(u, g, wigner[l], e, rows)
            _turn(h_u, g, h_wigner[l], e, rows)
            for row in range(rows):
                m, pair = _order(row)
                v = values[m][e, pair, columns[n, m] : columns[n, m] + width]
                h_v = h_values[m][e, pair, columns[n, m] : columns[n, m] + width]
                d_v = d_values[m][e, pair, columns[n, m] : columns[n, m] + width]
                for head in range(heads):
                    begin, end = head * size, (head + 1) * size
                    a, h_a, total = attention[e, head], h_attention[e, head], attention[e, head] * 0
                    part, h_part, d_part = v[begin:end], h_v[begin:end], d_v[begin:end]
                    turned = u[row * width + begin : row * width + end]
                    h_turned = h_u[row * width + begin : row * width + end]
                    for c in range(size):
                        d_part[c] = h_a * turned[c] + a * h_turned[c]
                        total += h_part[c] * turned[c] + part[c] * h_turned[c]
                    w = weighted[row * width + begin : row * width + end]
                    new = changed[row * width + begin : row * width + end]
                    for c in range(size):
                        w[c] = a * part[c]
                        new[c] = a * h_part[c] + h_a * part[c]
                    d_attention[e, head] += total
            _turn_back(d_g, changed, wigner[l], e, rows)
            _turn_back(d_g, weighted, h_wigner[l], e, rows)
            if l:
                _outer(d_wigner[l], e, changed, g, rows)


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
    run_parts(_forward, parts, lambda part: (*inputs, arrays(sums[part]), _room(plan, attention)))
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
    given, results = arrays(grads), (arrays(g_values), array(g_attention), arrays(g_wigner))
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
    given = (arrays(grads), arrays(h_values), array(h_attention), arrays(h_wigner))
    results = (arrays(d_values), array(d_attention), arrays(d_wigner))
    sums = [[grad.new_zeros(grad.shape) for grad in grads] for _ in parts]
    run_parts(
        _double_backward, parts, lambda part: (*inputs, *given, *results, arrays(sums[part]), _room(plan, attention))
    )
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
    return (arrays(values), array(attention), array(target), arrays(wigner), *_tables(plan), plan.m_max)


def _room(plan: AggregatePlan, like: Tensor) -> np.ndarray:
    """Room for four sets of rows of one degree of one edge."""
    sizes = [(2 * l + 1) * c for l, c in zip(plan.degrees, plan.channels, strict=True)]
    return torch.empty(4, max(sizes), dtype=like.dtype).numpy()
