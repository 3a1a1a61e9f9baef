"""``gate`` on CPUs: SiLU, sigmoids, products and regrouping in one pass over the edges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from denskit.geometry.so2 import rows_of
from denskit.nn.activation import SIGMOID_FACTOR, SILU_FACTOR
from denskit.nn.fused.numba_common import at, inner, kernel, parts_of, product, run_parts, scaled, zero
from denskit.nn.fused.plan import GatePlan


@cache
def _tables(plan: GatePlan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks with l >= 1, widths of the outputs by m, and sizes as in :func:`_sizes`.

    A block's row: its number, m, its column in the output of that m, its first gate, its channels.
    """
    rows = []
    for number, (l, m) in enumerate(plan.blocks):
        if l:
            rows.append((number, m, plan.column(l, m), sum(plan.widths[: l - 1]), plan.widths[l - 1]))
    outputs = [plan.width(m) for m in range(plan.m_max + 1)]
    return np.array(rows, np.int64).reshape(-1, 5), np.array(outputs, np.int64), _sizes(plan)


def _sizes(plan: GatePlan) -> np.ndarray:
    """Scalars, gates, logits, and their sum."""
    gates = sum(plan.widths)
    return np.array((plan.num_scalars, gates, plan.num_logits, plan.num_scalars + gates + plan.num_logits), np.int64)


@inner
def _sigmoid(s, x, i, n):
    """s = 1 / (1 + exp(-x[i:])), n numbers."""
    i = np.uint64(i)
    for c in range(np.uint64(n)):
        s[c] = 1 / (1 + np.exp(-x[i + c]))


@inner
def _silu(out, o, factor, x, i, s, n):
    """out[o:] = factor x s."""
    o, i = np.uint64(o), np.uint64(i)
    for c in range(np.uint64(n)):
        out[o + c] = factor * x[i + c] * s[c]


@inner
def _silu_gradient(out, o, factor, g, j, x, i, s, n):
    """out[o:] = factor g silu'(x)."""
    o, i, j = np.uint64(o), np.uint64(i), np.uint64(j)
    for c in range(np.uint64(n)):
        out[o + c] = factor * g[j + c] * s[c] * (1 + x[i + c] * (1 - s[c]))


@inner
def _silu_curvature(out, o, factor, g, j, h, x, i, s, n):
    """out[o:] = factor g h silu''(x); h begins where x does."""
    o, i, j = np.uint64(o), np.uint64(i), np.uint64(j)
    for c in range(np.uint64(n)):
        bend = s[c] * (1 - s[c]) * (2 + x[i + c] * (1 - 2 * s[c]))
        out[o + c] = factor * g[j + c] * h[i + c] * bend


@inner
def _slopes(slope, bend, factor, s, first, n):
    """Factor sigmoid' and factor sigmoid'' from sigmoids."""
    first = np.uint64(first)
    for c in range(np.uint64(n)):
        slope[c] = factor * s[first + c] * (1 - s[first + c])
        bend[c] = slope[c] * (1 - 2 * s[first + c])


@kernel
def _forward(first, last, mixed, table, outputs, sizes, silu, sigmoid, out, logits, room):
    s = room[0]
    scalars, gates, passed, total = sizes
    for e in range(first, last):
        x = e * total
        _sigmoid(s, at(mixed[0], room), x, scalars + gates)
        _silu(at(out[0], room), e * outputs[0], silu, at(mixed[0], room), x, s, scalars)
        scaled(logits, e * passed, 1, at(mixed[0], room), x + scalars + gates, passed)
        for p in range(len(table)):
            block, m, column, gate, n = table[p]
            for row in range(1 if m == 0 else 2):
                k = e if m == 0 else 2 * e + row
                product(
                    at(out[m], room),
                    k * outputs[m] + column,
                    sigmoid,
                    s,
                    scalars + gate,
                    at(mixed[block], room),
                    k * n,
                    n,
                )


@kernel
def _backward(first, last, mixed, table, outputs, sizes, silu, sigmoid, grads, g_logits, g_mixed, room):
    s, slope, bend = room[0], room[1], room[2]
    scalars, gates, passed, total = sizes
    for e in range(first, last):
        x = e * total
        _sigmoid(s, at(mixed[0], room), x, scalars + gates)
        _silu_gradient(
            at(g_mixed[0], room), x, silu, at(grads[0], room), e * outputs[0], at(mixed[0], room), x, s, scalars
        )
        zero(at(g_mixed[0], room), x + scalars, gates)
        scaled(at(g_mixed[0], room), x + scalars + gates, 1, g_logits, e * passed, passed)
        _slopes(slope, bend, sigmoid, s, scalars, gates)
        for p in range(len(table)):
            block, m, column, gate, n = table[p]
            v, g_v, g_y = at(mixed[block], room), at(g_mixed[block], room), at(grads[m], room)
            for row in range(1 if m == 0 else 2):
                k = e if m == 0 else 2 * e + row
                y = k * outputs[m] + column
                product(g_v, k * n, sigmoid, g_y, y, s, scalars + gate, n)
                _add_triple(at(g_mixed[0], room), x + scalars + gate, g_y, y, v, k * n, slope, gate, n)


@inner
def _add_triple(out, o, x, i, y, j, z, k, n):
    """out[o:] += x[i:] y[j:] z[k:], n numbers."""
    o, i, j, k = np.uint64(o), np.uint64(i), np.uint64(j), np.uint64(k)
    for c in range(np.uint64(n)):
        out[o + c] += x[i + c] * y[j + c] * z[k + c]


@inner
def _second(d_v, d_y, g_y, v, h_v, h_g, slope, s, factor, place, y, h, gate, sigmoids, n):
    """Gradients of one row's gated features and of the gradients that came to them; see :func:`_double_backward`."""
    place, y, h = np.uint64(place), np.uint64(y), np.uint64(h)
    gate, sigmoids = np.uint64(gate), np.uint64(sigmoids)
    for c in range(np.uint64(n)):
        d_v[place + c] = h_g[h + c] * slope[gate + c] * g_y[y + c]
    for c in range(np.uint64(n)):
        d_y[y + c] = factor * h_v[place + c] * s[sigmoids + c] + h_g[h + c] * slope[gate + c] * v[place + c]


@inner
def _add_curved(out, o, g_y, y, h_v, v, place, h_g, slope, bend, gate, n):
    """out[o:] += g_y (slope h_v + bend h_g v); h_g begins where out does."""
    o, y, place, gate = np.uint64(o), np.uint64(y), np.uint64(place), np.uint64(gate)
    for c in range(np.uint64(n)):
        out[o + c] += g_y[y + c] * (slope[gate + c] * h_v[place + c] + bend[gate + c] * h_g[o + c] * v[place + c])


@kernel
def _double_backward(
    first, last, mixed, table, outputs, sizes, silu, sigmoid, grads, h_mixed, d_mixed, d_grads, d_logits, room
):  # fmt: skip
    s, slope, bend = room[0], room[1], room[2]
    scalars, gates, passed, total = sizes
    for e in range(first, last):
        x = e * total
        _sigmoid(s, at(mixed[0], room), x, scalars + gates)
        _silu_gradient(
            at(d_grads[0], room), e * outputs[0], silu, at(h_mixed[0], room), x, at(mixed[0], room), x, s, scalars
        )
        _silu_curvature(
            at(d_mixed[0], room),
            x,
            silu,
            at(grads[0], room),
            e * outputs[0],
            at(h_mixed[0], room),
            at(mixed[0], room),
            x,
            s,
            scalars,
        )
        zero(at(d_mixed[0], room), x + scalars, gates + passed)
        scaled(d_logits, e * passed, 1, at(h_mixed[0], room), x + scalars + gates, passed)
        _slopes(slope, bend, sigmoid, s, scalars, gates)
        for p in range(len(table)):
            block, m, column, gate, n = table[p]
            v, h_v, d_v, g_y, d_y = (
                at(mixed[block], room),
                at(h_mixed[block], room),
                at(d_mixed[block], room),
                at(grads[m], room),
                at(d_grads[m], room),
            )
            h = x + scalars + gate
            for row in range(1 if m == 0 else 2):
                k = e if m == 0 else 2 * e + row
                y = k * outputs[m] + column
                _second(
                    d_v, d_y, g_y, v, h_v, at(h_mixed[0], room), slope, s, sigmoid, k * n, y, h, gate, scalars + gate, n
                )
                _add_curved(at(d_mixed[0], room), h, g_y, y, h_v, v, k * n, at(h_mixed[0], room), slope, bend, gate, n)


def gate_forward(plan: GatePlan, mixed: Sequence[Tensor]) -> list[Tensor]:
    """Features by m, then logits; see :func:`denskit.nn.fused.reference.gate`."""
    edges = len(mixed[0])
    out = [mixed[0].new_empty(edges, rows_of(m), plan.width(m)) for m in range(plan.m_max + 1)]
    logits = mixed[0].new_empty(edges, plan.num_logits)
    inputs, results = _inputs(plan, mixed), (out, logits)
    run_parts(_forward, parts_of(edges), lambda _: (*inputs, *results, _room(plan, mixed[0])))
    return [*out, logits]


def gate_backward(plan: GatePlan, mixed: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
    """Gradients with respect to mixed."""
    g_mixed = [x.new_empty(x.shape) for x in mixed]
    inputs, results = _inputs(plan, mixed), g_mixed
    given = (grads[:-1], grads[-1])
    run_parts(_backward, parts_of(len(mixed[0])), lambda _: (*inputs, *given, results, _room(plan, mixed[0])))
    return g_mixed


def gate_double_backward(
    plan: GatePlan, mixed: Sequence[Tensor], grads: Sequence[Tensor], h_mixed: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of :func:`gate_backward` with respect to mixed and grads."""
    d_mixed, d_grads = [x.new_empty(x.shape) for x in mixed], [x.new_empty(x.shape) for x in grads]
    inputs, given = _inputs(plan, mixed), (grads[:-1], h_mixed)
    results = (d_mixed, d_grads[:-1], d_grads[-1])
    run_parts(_double_backward, parts_of(len(mixed[0])), lambda _: (*inputs, *given, *results, _room(plan, mixed[0])))
    return d_mixed, d_grads


def _inputs(plan: GatePlan, mixed: Sequence[Tensor]) -> tuple[object, ...]:
    number = (
        np.float32 if mixed[0].dtype == torch.float32 else np.float64
    )  # factors of another precision would make the arithmetic theirs
    return (mixed, *_tables(plan), number(SILU_FACTOR), number(SIGMOID_FACTOR))


def _room(plan: GatePlan, like: Tensor) -> np.ndarray:
    """Room for the sigmoids of one edge and their derivatives."""
    return like.new_empty(3, plan.num_scalars + sum(plan.widths)).numpy()
