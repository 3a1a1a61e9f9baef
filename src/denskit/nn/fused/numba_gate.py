"""``gate`` on CPUs: SiLU, sigmoids, products and regrouping in one pass over the edges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from torch import Tensor

from denskit.geometry.so2 import rows_of
from denskit.nn.activation import SIGMOID_FACTOR, SILU_FACTOR
from denskit.nn.fused.numba_common import array, arrays, inner, kernel, parts_of, run_parts
from denskit.nn.fused.plan import GatePlan

BLOCK, M, COLUMN, GATE, WIDTH = range(5)  # columns of the table


@cache
def _table(plan: GatePlan) -> np.ndarray:
    """Of every block with l >= 1: its number, m, its column in the output of that m, its first gate, its channels."""
    rows = []
    for number, (l, m) in enumerate(plan.blocks):
        if l:
            rows.append((number, m, plan.column(l, m), sum(plan.widths[: l - 1]), plan.widths[l - 1]))
    return np.array(rows, np.int64).reshape(-1, 5)


@inner
def _sigmoid(s, x):
    """1 / (1 + exp(-x)) of a row."""
    for c in range(len(x)):
        s[c] = 1 / (1 + np.exp(-x[c]))


@inner
def _copy(out, x):
    for c in range(len(out)):
        out[c] = x[c]


@kernel
def _forward(first, last, mixed, table, scalars, gates, silu_factor, sigmoid_factor, out, logits, room):
    for e in range(first, last):
        x = mixed[0][e, 0]
        s = room[: scalars + gates]
        _sigmoid(s, x[: scalars + gates])
        silu = out[0][e, 0, :scalars]
        for c in range(scalars):
            silu[c] = silu_factor * x[c] * s[c]
        _copy(logits[e], x[scalars + gates :])
        for p in range(len(table)):
            block, m, column, gate, width = table[p]
            g = s[scalars + gate : scalars + gate + width]
            for row in range(1 if m == 0 else 2):
                v, y = mixed[block][e, row], out[m][e, row, column : column + width]
                for c in range(width):
                    y[c] = sigmoid_factor * g[c] * v[c]


@kernel
def _backward(
    first, last, mixed, table, scalars, gates, silu_factor, sigmoid_factor, grads, g_logits, g_mixed, room
):  # fmt: skip
    for e in range(first, last):
        x, g_x = mixed[0][e, 0], g_mixed[0][e, 0]
        s = room[: scalars + gates]
        _sigmoid(s, x[: scalars + gates])
        g_silu = grads[0][e, 0, :scalars]
        for c in range(scalars):
            g_x[c] = silu_factor * g_silu[c] * s[c] * (1 + x[c] * (1 - s[c]))
        g_x[scalars : scalars + gates] = 0
        _copy(g_x[scalars + gates :], g_logits[e])
        for p in range(len(table)):
            block, m, column, gate, width = table[p]
            g, g_g = s[scalars + gate : scalars + gate + width], g_x[scalars + gate : scalars + gate + width]
            for row in range(1 if m == 0 else 2):
                v, g_v = mixed[block][e, row], g_mixed[block][e, row]
                g_y = grads[m][e, row, column : column + width]
                for c in range(width):
                    part = sigmoid_factor * g_y[c] * g[c]
                    g_v[c] = part
                    g_g[c] += part * (1 - g[c]) * v[c]


@kernel
def _double_backward(
    first, last, mixed, table, scalars, gates, silu_factor, sigmoid_factor, grads, h_mixed,
    d_mixed, d_grads, d_logits, room,
):  # fmt: skip
    for e in range(first, last):
        x, h_x, d_x = mixed[0][e, 0], h_mixed[0][e, 0], d_mixed[0][e, 0]
        s = room[: scalars + gates]
        _sigmoid(s, x[: scalars + gates])
        g_silu, d_silu = grads[0][e, 0, :scalars], d_grads[0][e, 0, :scalars]
        for c in range(scalars):
            slope = s[c] * (1 - s[c])
            d_silu[c] = silu_factor * h_x[c] * (s[c] + x[c] * slope)
            d_x[c] = silu_factor * h_x[c] * g_silu[c] * slope * (2 + x[c] * (1 - 2 * s[c]))
        d_x[scalars:] = 0
        _copy(d_logits[e], h_x[scalars + gates :])
        for p in range(len(table)):
            block, m, column, gate, width = table[p]
            begin, end = scalars + gate, scalars + gate + width
            g, h_g, d_g = s[begin:end], h_x[begin:end], d_x[begin:end]
            for row in range(1 if m == 0 else 2):
                v, h_v, d_v = mixed[block][e, row], h_mixed[block][e, row], d_mixed[block][e, row]
                g_y = grads[m][e, row, column : column + width]
                d_y = d_grads[m][e, row, column : column + width]
                for c in range(width):
                    slope = sigmoid_factor * g[c] * (1 - g[c])
                    d_v[c] = h_g[c] * slope * g_y[c]
                    d_y[c] = sigmoid_factor * h_v[c] * g[c] + h_g[c] * slope * v[c]
                # a loop of its own: with more arrays the compiler gives up proving that they do not overlap
                for c in range(width):
                    slope = sigmoid_factor * g[c] * (1 - g[c])
                    d_g[c] += slope * g_y[c] * (h_v[c] + h_g[c] * (1 - 2 * g[c]) * v[c])


def gate_forward(plan: GatePlan, mixed: Sequence[Tensor]) -> list[Tensor]:
    """Features by m, then logits; see :func:`denskit.nn.fused.reference.gate`."""
    edges = len(mixed[0])
    out = [mixed[0].new_empty(edges, rows_of(m), plan.width(m)) for m in range(plan.m_max + 1)]
    logits = mixed[0].new_empty(edges, plan.num_logits)
    inputs, results = _inputs(plan, mixed), (arrays(out), array(logits))
    run_parts(_forward, parts_of(edges), lambda _: (*inputs, *results, _room(plan, mixed[0])))
    return [*out, logits]


def gate_backward(plan: GatePlan, mixed: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
    """Gradients with respect to mixed."""
    g_mixed = [x.new_empty(x.shape) for x in mixed]
    inputs, results = _inputs(plan, mixed), arrays(g_mixed)
    given = (arrays(grads[:-1]), array(grads[-1]))
    run_parts(_backward, parts_of(len(mixed[0])), lambda _: (*inputs, *given, results, _room(plan, mixed[0])))
    return g_mixed


def gate_double_backward(
    plan: GatePlan, mixed: Sequence[Tensor], grads: Sequence[Tensor], h_mixed: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of :func:`gate_backward` with respect to mixed and grads."""
    d_mixed, d_grads = [x.new_empty(x.shape) for x in mixed], [x.new_empty(x.shape) for x in grads]
    inputs, given = _inputs(plan, mixed), (arrays(grads[:-1]), arrays(h_mixed))
    results = (arrays(d_mixed), arrays(d_grads[:-1]), array(d_grads[-1]))
    run_parts(_double_backward, parts_of(len(mixed[0])), lambda _: (*inputs, *given, *results, _room(plan, mixed[0])))
    return d_mixed, d_grads


def _inputs(plan: GatePlan, mixed: Sequence[Tensor]) -> tuple[object, ...]:
    blocks = arrays(mixed)
    number = blocks[0].dtype.type  # factors of another precision would make the arithmetic theirs
    sizes = (plan.num_scalars, sum(plan.widths))
    return (blocks, _table(plan), *sizes, number(SILU_FACTOR), number(SIGMOID_FACTOR))


def _room(plan: GatePlan, like: Tensor) -> np.ndarray:
    """Room for the sigmoids of one edge."""
    return array(like.new_empty(plan.num_scalars + sum(plan.widths)))
