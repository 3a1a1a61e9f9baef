"""``gate`` on CPUs: SiLU, sigmoids, products and regrouping in one pass over the edges."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denskit.geometry.so2 import rows_of
from denskit.models.equiformer.kernels.numba_kernel import kernel
from denskit.models.equiformer.kernels.numba_rows import copy, zero
from denskit.models.equiformer.kernels.numba_threads import Layout, number_of, run, unwritten
from denskit.models.equiformer.kernels.numba_vectors import Code, Lanes, at, operation
from denskit.models.equiformer.kernels.plan import GatePlan, Tensors
from denskit.nn.activation import SIGMOID_FACTOR, SILU_FACTOR


@cache
def _layout(plan: GatePlan, dtype: torch.dtype) -> Layout:
    """Tables: blocks with l >= 1, widths of the outputs by m, sizes, and the factors of SiLU and sigmoid.

    A block's row: its number, m, its column in the output of that m, its first gate, its channels.  Sizes: scalars,
    gates, logits, their sum, blocks.  Factors of another precision would make the arithmetic theirs.
    """
    rows = []
    for number, (l, m) in enumerate(plan.blocks):
        if l:
            rows.append((number, m, plan.column(l, m), sum(plan.widths[: l - 1]), plan.widths[l - 1]))
    widths, gates = [plan.width(m) for m in range(plan.m_max + 1)], sum(plan.widths)
    numbers = (plan.num_scalars, gates, plan.num_logits, plan.num_scalars + gates + plan.num_logits, len(plan.blocks))
    factors = np.array((SILU_FACTOR, SIGMOID_FACTOR), number_of(dtype))
    tables = (np.array(rows, np.int64).reshape(-1, 5), np.array(widths, np.int64), np.array(numbers, np.int64), factors)
    shapes = (*((rows_of(m), width) for m, width in enumerate(widths)), (plan.num_logits,))
    return Layout(tables, shapes, room=(0, 0), number=number_of(dtype))


@operation
def scaled_product(code: Code, out: Any, o: Any, factor: Any, x: Any, i: Any, y: Any, j: Any, n: Any) -> None:
    """Out = factor x y, n numbers."""
    code.along(n, lambda lanes: lanes.store(lanes.mul(lanes.all(factor), lanes.load(x, i), lanes.load(y, j)), out, o))


def _silu_slope(lanes: Lanes, factor: Any, x: Any, s: Any) -> Any:
    """Factor silu'(x), where s = sigmoid(x)."""
    return lanes.mul(lanes.all(factor), s, lanes.add(lanes.all(1.0), lanes.mul(x, lanes.sub(lanes.all(1.0), s))))


def _sigmoid_slope(lanes: Lanes, factor: Any, s: Any) -> Any:
    """Factor times the derivative of the sigmoid s."""
    return lanes.mul(lanes.all(factor), s, lanes.sub(lanes.all(1.0), s))


@operation
def silu_backward(
    code: Code, out: Any, o: Any, factor: Any, g: Any, j: Any, x: Any, i: Any, s: Any, k: Any, n: Any
) -> None:  # fmt: skip
    """Out = factor g silu'(x), n numbers; s are the sigmoids of x."""

    def body(lanes: Lanes) -> None:
        slope = _silu_slope(lanes, factor, lanes.load(x, i), lanes.load(s, k))
        lanes.store(lanes.mul(lanes.load(g, j), slope), out, o)

    code.along(n, body)


@operation
def silu_double_backward(
    code: Code, d_g: Any, j: Any, d_x: Any, i: Any, factor: Any, g: Any, h: Any, x: Any, s: Any, k: Any, n: Any
) -> None:  # fmt: skip
    """d_g = factor h silu'(x) and d_x = factor g h silu''(x); g begins where d_g does, h and x where d_x does."""

    def body(lanes: Lanes) -> None:
        value, sigmoid, change = lanes.load(x, i), lanes.load(s, k), lanes.load(h, i)
        one, two = lanes.all(1.0), lanes.all(2.0)
        lanes.store(lanes.mul(change, _silu_slope(lanes, factor, value, sigmoid)), d_g, j)
        bend = lanes.add(two, lanes.mul(value, lanes.sub(one, lanes.mul(two, sigmoid))))
        slope = _sigmoid_slope(lanes, factor, sigmoid)
        lanes.store(lanes.mul(lanes.load(g, j), change, slope, bend), d_x, i)

    code.along(n, body)


@operation
def gate_rows_backward(
    code: Code, g_v: Any, g_x: Any, h: Any, factor: Any, g: Any, y: Any, width: Any, v: Any, k: Any, s: Any, i: Any,
    rows: Any, n: Any,
) -> None:  # fmt: skip
    """For rows v times one gate: store their gradient, add that of the gate before the sigmoid."""

    def body(lanes: Lanes) -> None:
        sigmoid = lanes.load(s, i)
        scaled, total = lanes.mul(lanes.all(factor), sigmoid), lanes.variable(lanes.all(0.0))

        def row_of(row: Any) -> None:
            gradient, place = lanes.load(g, code.place(y, row, width)), code.place(k, row, n)
            lanes.store(lanes.mul(gradient, scaled), g_v, place)
            lanes.increase(total, lanes.mul(gradient, lanes.load(v, place)))

        code.times(rows, row_of)
        lanes.add_to(g_x, h, lanes.mul(lanes.value(total), _sigmoid_slope(lanes, factor, sigmoid)))

    code.along(n, body)


@operation
def gate_rows_double_backward(
    code: Code, d_v: Any, d_y: Any, d_x: Any, h_x: Any, h: Any, factor: Any, g: Any, y: Any, width: Any,
    v: Any, h_v: Any, k: Any, s: Any, i: Any, rows: Any, n: Any,
) -> None:  # fmt: skip
    """For ``gate_rows_backward``: store the gradients of v and g, add that of the gate."""

    def body(lanes: Lanes) -> None:
        sigmoid, change = lanes.load(s, i), lanes.load(h_x, h)
        slope = _sigmoid_slope(lanes, factor, sigmoid)
        bend = lanes.mul(slope, lanes.sub(lanes.all(1.0), lanes.mul(lanes.all(2.0), sigmoid)))
        scaled, moved = lanes.mul(lanes.all(factor), sigmoid), lanes.mul(change, slope)
        by_h_v, by_v = lanes.variable(lanes.all(0.0)), lanes.variable(lanes.all(0.0))

        def row_of(row: Any) -> None:
            at_y, at_v = code.place(y, row, width), code.place(k, row, n)
            gradient, value, turned = lanes.load(g, at_y), lanes.load(v, at_v), lanes.load(h_v, at_v)
            lanes.store(lanes.mul(moved, gradient), d_v, at_v)
            lanes.store(lanes.add(lanes.mul(scaled, turned), lanes.mul(moved, value)), d_y, at_y)
            lanes.increase(by_h_v, lanes.mul(gradient, turned))
            lanes.increase(by_v, lanes.mul(gradient, value))

        code.times(rows, row_of)
        first = lanes.mul(slope, lanes.value(by_h_v))
        lanes.add_to(d_x, h, lanes.add(first, lanes.mul(bend, change, lanes.value(by_v))))

    code.along(n, body)


# Tensors of a kernel: sigmoids, inputs, gradients of the outputs, cotangents in the order of the inputs, results in the
# order of the inputs and then of the gradients.


@kernel
def _forward(first, last, tensors, table, widths, sizes, factors, _room):
    scalars, gates, passed, total, blocks = sizes
    silu, sigmoid = factors
    s, mixed, out = at(tensors[0], factors), tensors[1:], tensors[1 + blocks :]
    x, y, logits = at(mixed[0], factors), at(out[0], factors), at(out[len(widths)], factors)
    for e in range(first, last):
        sigmoids = e * (scalars + gates)
        scaled_product(y, e * widths[0], silu, x, e * total, s, sigmoids, scalars)
        copy(logits, e * passed, x, e * total + scalars + gates, passed)
        for p in range(len(table)):
            block, m, column, gate, n = table[p]
            v, gated = at(mixed[block], factors), at(out[m], factors)
            for row in range(1 if m == 0 else 2):
                k = e if m == 0 else 2 * e + row
                scaled_product(gated, k * widths[m] + column, sigmoid, s, sigmoids + scalars + gate, v, k * n, n)


@kernel
def _backward(first, last, tensors, table, widths, sizes, factors, _room):
    scalars, gates, passed, total, blocks = sizes
    silu, sigmoid = factors
    s, mixed, grads = at(tensors[0], factors), tensors[1:], tensors[1 + blocks :]
    g_logits, g_mixed = at(grads[len(widths)], factors), grads[len(widths) + 1 :]
    x, g_x = at(mixed[0], factors), at(g_mixed[0], factors)
    for e in range(first, last):
        sigmoids, i = e * (scalars + gates), e * total
        silu_backward(g_x, i, silu, at(grads[0], factors), e * widths[0], x, i, s, sigmoids, scalars)
        zero(g_x, i + scalars, gates)
        copy(g_x, i + scalars + gates, g_logits, e * passed, passed)
        for p in range(len(table)):
            block, m, column, gate, n = table[p]
            rows = 1 if m == 0 else 2
            gate_rows_backward(
                at(g_mixed[block], factors), g_x, i + scalars + gate, sigmoid, at(grads[m], factors),
                rows * e * widths[m] + column, widths[m], at(mixed[block], factors), rows * e * n,
                s, sigmoids + scalars + gate, rows, n,
            )  # fmt: skip


@kernel
def _double_backward(first, last, tensors, table, widths, sizes, factors, _room):
    scalars, gates, passed, total, blocks = sizes
    silu, sigmoid = factors
    s, mixed, grads = at(tensors[0], factors), tensors[1:], tensors[1 + blocks :]
    h_mixed = grads[len(widths) + 1 :]
    d_mixed, d_grads = h_mixed[blocks:], h_mixed[2 * blocks :]
    x, h_x, d_x = at(mixed[0], factors), at(h_mixed[0], factors), at(d_mixed[0], factors)
    g, d_g, d_logits = at(grads[0], factors), at(d_grads[0], factors), at(d_grads[len(widths)], factors)
    for e in range(first, last):
        sigmoids, i, top = e * (scalars + gates), e * total, e * widths[0]
        silu_double_backward(d_g, top, d_x, i, silu, g, h_x, x, s, sigmoids, scalars)
        zero(d_x, i + scalars, gates + passed)
        copy(d_logits, e * passed, h_x, i + scalars + gates, passed)
        for p in range(len(table)):
            block, m, column, gate, n = table[p]
            rows = 1 if m == 0 else 2
            gate_rows_double_backward(
                at(d_mixed[block], factors), at(d_grads[m], factors), d_x, h_x, i + scalars + gate, sigmoid,
                at(grads[m], factors), rows * e * widths[m] + column, widths[m],
                at(mixed[block], factors), at(h_mixed[block], factors), rows * e * n,
                s, sigmoids + scalars + gate, rows, n,
            )  # fmt: skip


def forward(plan: GatePlan, inputs: Tensors) -> list[Tensor]:
    """Features by m, then logits; see :func:`denskit.models.equiformer.kernels.reference.gate`."""
    first = inputs[0]
    out = [first.new_empty((len(first), *shape)) for shape in _layout(plan, first.dtype).shapes]
    _run(_forward, plan, inputs, (), out)
    return out


def backward(plan: GatePlan, inputs: Tensors, grads: Tensors) -> list[Tensor]:
    """Gradients with respect to the inputs."""
    out = unwritten(inputs)
    _run(_backward, plan, inputs, grads, out)
    return out


def double_backward(plan: GatePlan, inputs: Tensors, grads: Tensors, cotangents: Tensors) -> list[Tensor]:
    """Gradients of :func:`backward` with respect to inputs and grads."""
    out = unwritten((*inputs, *grads))
    _run(_double_backward, plan, inputs, (*grads, *cotangents), out)
    return out


def _run(kernel: Any, plan: GatePlan, inputs: Tensors, given: Tensors, out: Tensors) -> None:
    first = inputs[0]  # its sigmoids are PyTorch's, which are in vector instructions
    sigmoids = torch.sigmoid(first.narrow(-1, 0, plan.num_scalars + sum(plan.widths)))
    run(kernel, _layout(plan, first.dtype), len(first), (sigmoids, *inputs, *given, *out))
