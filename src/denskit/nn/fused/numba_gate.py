"""``gate`` on CPUs: SiLU, sigmoids, products and regrouping in one pass over the edges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from denskit.geometry.so2 import rows_of
from denskit.nn.activation import SIGMOID_FACTOR, SILU_FACTOR
from denskit.nn.fused.numba_common import inner, kernel, parts_of, run_parts
from denskit.nn.fused.numba_rows import add_quadruple, add_triple, at, product, scaled, zero
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
def _silu_gradient(out, o, factor, g, j, x, i, s, k, n):
    """out[o:] = factor g silu'(x), n numbers; s are the sigmoids of x."""
    o, i, j, k = np.uint64(o), np.uint64(i), np.uint64(j), np.uint64(k)
    for c in range(np.uint64(n)):
        out[o + c] = factor * g[j + c] * s[k + c] * (1 + x[i + c] * (1 - s[k + c]))


@inner
def _silu_curvature(out, o, factor, g, j, h, x, s, k, n):
    """out[o:] = factor g h silu''(x), n numbers; h and x begin where out does."""
    o, j, k = np.uint64(o), np.uint64(j), np.uint64(k)
    for c in range(np.uint64(n)):
        bend = s[k + c] * (1 - s[k + c]) * (2 + x[o + c] * (1 - 2 * s[k + c]))
        out[o + c] = factor * g[j + c] * h[o + c] * bend


@kernel
def _forward(first, last, mixed, table, outputs, sizes, silu, sigmoid, s, out, logits):
    scalars, gates, passed, total = sizes
    x, y = at(mixed[0], s), at(out[0], s)
    for e in range(first, last):
        sigmoids = e * (scalars + gates)
        product(y, e * outputs[0], silu, x, e * total, s, sigmoids, scalars)
        scaled(logits, e * passed, 1, x, e * total + scalars + gates, passed)
        for p in range(len(table)):
            block, m, column, gate, n = table[p]
            v, gated = at(mixed[block], s), at(out[m], s)
            for row in range(1 if m == 0 else 2):
                k = e if m == 0 else 2 * e + row
                product(gated, k * outputs[m] + column, sigmoid, s, sigmoids + scalars + gate, v, k * n, n)


@kernel
def _backward(first, last, mixed, table, outputs, sizes, silu, sigmoid, s, slope, grads, g_logits, g_mixed):
    scalars, gates, passed, total = sizes
    x, g_x = at(mixed[0], s), at(g_mixed[0], s)
    for e in range(first, last):
        sigmoids, i = e * (scalars + gates), e * total
        _silu_gradient(g_x, i, silu, at(grads[0], s), e * outputs[0], x, i, s, sigmoids, scalars)
        zero(g_x, i + scalars, gates)
        scaled(g_x, i + scalars + gates, 1, g_logits, e * passed, passed)
        for p in range(len(table)):
            block, m, column, gate, n = table[p]
            v, g_v, g_y = at(mixed[block], s), at(g_mixed[block], s), at(grads[m], s)
            for row in range(1 if m == 0 else 2):
                k = e if m == 0 else 2 * e + row
                y = k * outputs[m] + column
                product(g_v, k * n, sigmoid, g_y, y, s, sigmoids + scalars + gate, n)
                add_triple(g_x, i + scalars + gate, 1, g_y, y, v, k * n, slope, e * gates + gate, n)


@kernel
def _double_backward(
    first, last, mixed, table, outputs, sizes, silu, sigmoid, s, slope, bend, grads, h_mixed,
    d_mixed, d_grads, d_logits,
):  # fmt: skip
    scalars, gates, passed, total = sizes
    x, h_x, d_x = at(mixed[0], s), at(h_mixed[0], s), at(d_mixed[0], s)
    for e in range(first, last):
        sigmoids, i, top = e * (scalars + gates), e * total, e * outputs[0]
        _silu_gradient(at(d_grads[0], s), top, silu, h_x, i, x, i, s, sigmoids, scalars)
        _silu_curvature(d_x, i, silu, at(grads[0], s), top, h_x, x, s, sigmoids, scalars)
        zero(d_x, i + scalars, gates + passed)
        scaled(d_logits, e * passed, 1, h_x, i + scalars + gates, passed)
        for p in range(len(table)):
            block, m, column, gate, n = table[p]
            v, h_v, d_v = at(mixed[block], s), at(h_mixed[block], s), at(d_mixed[block], s)
            g_y, d_y, h, g = at(grads[m], s), at(d_grads[m], s), i + scalars + gate, e * gates + gate
            for row in range(1 if m == 0 else 2):
                k = (e if m == 0 else 2 * e + row) * n
                y = (e if m == 0 else 2 * e + row) * outputs[m] + column
                zero(d_v, k, n)
                add_triple(d_v, k, 1, h_x, h, slope, g, g_y, y, n)
                product(d_y, y, sigmoid, h_v, k, s, sigmoids + scalars + gate, n)
                add_triple(d_y, y, 1, h_x, h, slope, g, v, k, n)
                add_triple(d_x, h, 1, slope, g, g_y, y, h_v, k, n)
                add_quadruple(d_x, h, 1, bend, g, g_y, y, h_x, h, v, k, n)


def gate_forward(plan: GatePlan, mixed: Sequence[Tensor]) -> list[Tensor]:
    """Features by m, then logits; see :func:`denskit.nn.fused.reference.gate`."""
    edges = len(mixed[0])
    out = [mixed[0].new_empty(edges, rows_of(m), plan.width(m)) for m in range(plan.m_max + 1)]
    logits = mixed[0].new_empty(edges, plan.num_logits)
    inputs = (*_inputs(plan, mixed), _sigmoids(plan, mixed[0]))
    run_parts(_forward, parts_of(edges), lambda _: (*inputs, out, logits))
    return [*out, logits]


def gate_backward(plan: GatePlan, mixed: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
    """Gradients with respect to mixed."""
    g_mixed = [x.new_empty(x.shape) for x in mixed]
    sigmoids = _sigmoids(plan, mixed[0])
    inputs = (*_inputs(plan, mixed), sigmoids, _slopes(plan, sigmoids)[0], grads[:-1], grads[-1])
    run_parts(_backward, parts_of(len(mixed[0])), lambda _: (*inputs, g_mixed))
    return g_mixed


def gate_double_backward(
    plan: GatePlan, mixed: Sequence[Tensor], grads: Sequence[Tensor], h_mixed: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of :func:`gate_backward` with respect to mixed and grads."""
    d_mixed, d_grads = [x.new_empty(x.shape) for x in mixed], [x.new_empty(x.shape) for x in grads]
    sigmoids = _sigmoids(plan, mixed[0])
    inputs = (*_inputs(plan, mixed), sigmoids, *_slopes(plan, sigmoids), grads[:-1], h_mixed)
    results = (d_mixed, d_grads[:-1], d_grads[-1])
    run_parts(_double_backward, parts_of(len(mixed[0])), lambda _: (*inputs, *results))
    return d_mixed, d_grads


def _inputs(plan: GatePlan, mixed: Sequence[Tensor]) -> tuple[object, ...]:
    # factors of another precision would make the arithmetic theirs
    number = np.float32 if mixed[0].dtype == torch.float32 else np.float64
    return (list(mixed), *_tables(plan), number(SILU_FACTOR), number(SIGMOID_FACTOR))


def _sigmoids(plan: GatePlan, first: Tensor) -> Tensor:
    """Sigmoids [E, scalars + gates]: PyTorch's are in vector instructions."""
    return torch.sigmoid(first[:, 0, : plan.num_scalars + sum(plan.widths)])


def _slopes(plan: GatePlan, sigmoids: Tensor) -> tuple[Tensor, Tensor]:
    """First and second derivatives [E, gates] of the scaled sigmoids of the gates."""
    gates = sigmoids[:, plan.num_scalars :]
    slope = gates * (1 - gates) * SIGMOID_FACTOR
    return slope, slope * (1 - 2 * gates)
