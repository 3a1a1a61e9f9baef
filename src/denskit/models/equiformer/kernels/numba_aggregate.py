"""``aggregate`` on CPUs: values times attention, rotated back and summed at the target, without buffers of edges.

out[target] += D^T (a v); trilinear in (v, a, D), and so are its derivatives.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denskit.models.equiformer.kernels.numba_kernel import kernel
from denskit.models.equiformer.kernels.numba_rows import (
    add_total,
    clear_matrices,
    fill,
    outer,
    rotate,
    rotate_back,
    zero,
)
from denskit.models.equiformer.kernels.numba_threads import Layout, number_of, run, unwritten
from denskit.models.equiformer.kernels.numba_vectors import Code, Lanes, at, operation
from denskit.models.equiformer.kernels.plan import AggregatePlan, Tensors


@cache
def _layout(plan: AggregatePlan, dtype: torch.dtype) -> Layout:
    """Tables: degrees [D, 2] (l, channels), where each begins [D, m_max + 1] in values[m], widths of values[m]."""
    columns = [[plan.column(l, m) for m in range(plan.m_max + 1)] for l in plan.degrees]
    widths = [plan.width(m) for m in range(plan.m_max + 1)]
    degrees = np.array(list(zip(plan.degrees, plan.channels, strict=True)), np.int64)
    shapes = tuple((2 * l + 1, c) for l, c in zip(plan.degrees, plan.channels, strict=True))
    return Layout(
        tables=(degrees, np.array(columns, np.int64), np.array(widths, np.int64)),
        shapes=shapes,
        room=(7, max(rows * c for rows, c in shapes)),
        number=number_of(dtype),
    )


@kernel
def _place(e, row, m, column, widths):
    """Start of an edge's row (0, +1, -1, +2, ...) of a degree in values[m]."""
    return e * widths[0] + column if m == 0 else (2 * e + (row + 1) % 2) * widths[m] + column


@operation
def weigh(code: Code, out: Any, o: Any, a: Any, x: Any, i: Any, n: Any) -> None:
    """Out = a x, n numbers; a from its beginning."""
    code.along(n, lambda lanes: lanes.store(lanes.mul(lanes.load(a, code.whole(0)), lanes.load(x, i)), out, o))


@operation
def weigh_backward(
    code: Code, g_x: Any, v: Any, weighted: Any, i: Any, total: Any, a: Any, x: Any, u: Any, n: Any
) -> None:  # fmt: skip
    """For a x with the gradient u: store the gradient of x and a x, add the gradient of a."""
    zero_place = code.whole(0)

    def body(lanes: Lanes) -> None:
        weight, value, gradient = lanes.load(a, zero_place), lanes.load(x, v), lanes.load(u, i)
        lanes.store(lanes.mul(weight, gradient), g_x, v)
        lanes.store(lanes.mul(weight, value), weighted, i)
        lanes.add_to(total, zero_place, lanes.mul(value, gradient))

    code.along(n, body)


@operation
def weigh_double_backward(
    code: Code, d_x: Any, v: Any, weighted: Any, changed: Any, i: Any, total: Any, a: Any, h_a: Any,
    x: Any, h_x: Any, u: Any, h_u: Any, n: Any,
) -> None:  # fmt: skip
    """For ``weigh_backward``, with h_u the change of u: store the gradient of x, a x and its change, add that of a."""
    zero_place = code.whole(0)

    def body(lanes: Lanes) -> None:
        weight, h_weight = lanes.load(a, zero_place), lanes.load(h_a, zero_place)
        value, h_value = lanes.load(x, v), lanes.load(h_x, v)
        gradient, h_gradient = lanes.load(u, i), lanes.load(h_u, i)
        lanes.store(lanes.add(lanes.mul(h_weight, gradient), lanes.mul(weight, h_gradient)), d_x, v)
        lanes.store(lanes.mul(weight, value), weighted, i)
        lanes.store(lanes.add(lanes.mul(weight, h_value), lanes.mul(h_weight, value)), changed, i)
        lanes.add_to(total, zero_place, lanes.add(lanes.mul(h_value, gradient), lanes.mul(value, h_gradient)))

    code.along(n, body)


@kernel
def _spread(out, attention, e, heads, size):
    """The weights of an edge's heads, each ``size`` times."""
    for head in range(heads):
        fill(out, head * size, attention, e * heads + head, size)


@kernel
def _gather_heads(out, e, total, heads, size):
    """Add sums over the channels of each head."""
    for head in range(heads):
        add_total(out, e * heads + head, total, head * size, size)


@kernel
def _clear(sums, atoms, degrees, room):
    """Zero the sums at the atoms."""
    for n in range(len(degrees)):
        l, width = degrees[n]
        zero(at(sums[n], room), 0, atoms * (2 * l + 1) * width)


# Tensors of a kernel: target, inputs (values by m, attention, Wigner matrices by l), gradients of the outputs,
# cotangents in the order of the inputs, results in the order of the inputs, sums at the atoms.


@kernel
def _forward(first, last, tensors, count, heads, atoms, degrees, columns, widths, room):
    target, values, out = at(tensors[0], widths), tensors[1:], tensors[1 + count :]
    attention, wigner = at(values[len(widths)], room), values[len(widths) + 1 :]
    weighted, a = room[0], room[1]
    _clear(out, atoms, degrees, room)
    for e in range(first, last):
        for n in range(len(degrees)):
            l, width = degrees[n]
            rows, size = 2 * min(l, len(widths) - 1) + 1, 2 * l + 1
            _spread(a, attention, e, heads, width // heads)
            for row in range(rows):
                m = (row + 1) // 2
                v = _place(e, row, m, columns[n, m], widths)
                weigh(weighted, row * width, a, at(values[m], room), v, width)
            to, turns = at(out[n], room), at(wigner[l], room)
            rotate_back(to, target[e] * size * width, weighted, 0, turns, e * size * size, rows, size, width)


@kernel
def _backward(first, last, tensors, count, heads, degrees, columns, widths, room):
    orders = len(widths)
    target, values, grads = at(tensors[0], widths), tensors[1:], tensors[1 + count :]
    attention, wigner = at(values[orders], room), values[orders + 1 :]
    g_values = grads[len(degrees) :]
    g_attention, g_wigner = at(g_values[orders], room), g_values[orders + 1 :]
    weighted, u, a, total = room[0], room[1], room[2], room[3]
    for e in range(first, last):
        zero(g_attention, e * heads, heads)
        clear_matrices(g_wigner, e, count - orders - 1, room)
        for n in range(len(degrees)):
            l, width = degrees[n]
            rows, size = 2 * min(l, orders - 1) + 1, 2 * l + 1
            g, place, matrix = at(grads[n], room), target[e] * size * width, e * size * size
            _spread(a, attention, e, heads, width // heads)
            zero(total, 0, width)
            zero(u, 0, rows * width)
            rotate(u, 0, g, place, at(wigner[l], room), matrix, rows, size, width)
            for row in range(rows):
                m = (row + 1) // 2
                v = _place(e, row, m, columns[n, m], widths)
                x, g_x = at(values[m], room), at(g_values[m], room)
                weigh_backward(g_x, v, weighted, row * width, total, a, x, u, width)
            _gather_heads(g_attention, e, total, heads, width // heads)
            if l:
                outer(at(g_wigner[l], room), matrix, weighted, 0, g, place, rows, size, width)


@kernel
def _double_backward(first, last, tensors, count, heads, atoms, degrees, columns, widths, room):
    orders = len(widths)
    target, values, grads = at(tensors[0], widths), tensors[1:], tensors[1 + count :]
    h_values = grads[len(degrees) :]
    d_values, d_grads = h_values[count:], h_values[2 * count :]
    attention, wigner = at(values[orders], room), values[orders + 1 :]
    h_attention, h_wigner = at(h_values[orders], room), h_values[orders + 1 :]
    d_attention, d_wigner = at(d_values[orders], room), d_values[orders + 1 :]
    weighted, u, a, total = room[0], room[1], room[2], room[3]
    changed, h_u, h_a = room[4], room[5], room[6]
    _clear(d_grads, atoms, degrees, room)
    for e in range(first, last):
        zero(d_attention, e * heads, heads)
        clear_matrices(d_wigner, e, count - orders - 1, room)
        for n in range(len(degrees)):
            l, width = degrees[n]
            rows, size = 2 * min(l, orders - 1) + 1, 2 * l + 1
            g, d_g, place = at(grads[n], room), at(d_grads[n], room), target[e] * size * width
            turns, h_turns, matrix = at(wigner[l], room), at(h_wigner[l], room), e * size * size
            _spread(a, attention, e, heads, width // heads)
            _spread(h_a, h_attention, e, heads, width // heads)
            zero(total, 0, width)
            zero(u, 0, rows * width)
            zero(h_u, 0, rows * width)
            rotate(u, 0, g, place, turns, matrix, rows, size, width)
            rotate(h_u, 0, g, place, h_turns, matrix, rows, size, width)
            for row in range(rows):
                m = (row + 1) // 2
                v, i = _place(e, row, m, columns[n, m], widths), row * width
                x, h_x, d_x = at(values[m], room), at(h_values[m], room), at(d_values[m], room)
                weigh_double_backward(d_x, v, weighted, changed, i, total, a, h_a, x, h_x, u, h_u, width)
            _gather_heads(d_attention, e, total, heads, width // heads)
            rotate_back(d_g, place, changed, 0, turns, matrix, rows, size, width)
            rotate_back(d_g, place, weighted, 0, h_turns, matrix, rows, size, width)
            if l:
                outer(at(d_wigner[l], room), matrix, changed, 0, g, place, rows, size, width)


def forward(plan: AggregatePlan, target: Tensor, num_atoms: int, inputs: Tensors) -> list[Tensor]:
    """See :func:`denskit.models.equiformer.kernels.reference.aggregate`."""
    first = inputs[0]
    layout = _layout(plan, first.dtype)
    out = [first.new_empty((num_atoms, *shape)) for shape in layout.shapes]
    run(_forward, layout, len(target), (target, *inputs), (*_sizes(plan, inputs), num_atoms), out)
    return out


def backward(plan: AggregatePlan, target: Tensor, num_atoms: int, inputs: Tensors, grads: Tensors) -> list[Tensor]:
    """Gradients with respect to the inputs."""
    out = unwritten(inputs)
    tensors = (target, *inputs, *grads, *out)
    run(_backward, _layout(plan, inputs[0].dtype), len(target), tensors, _sizes(plan, inputs))
    return out


def double_backward(
    plan: AggregatePlan, target: Tensor, num_atoms: int, inputs: Tensors, grads: Tensors, cotangents: Tensors
) -> list[Tensor]:
    """Gradients of :func:`backward` with respect to inputs and grads."""
    out, d_grads = unwritten(inputs), unwritten(grads)
    tensors, sizes = (target, *inputs, *grads, *cotangents, *out), (*_sizes(plan, inputs), num_atoms)
    run(_double_backward, _layout(plan, inputs[0].dtype), len(target), tensors, sizes, d_grads)
    return [*out, *d_grads]


def _sizes(plan: AggregatePlan, inputs: Tensors) -> tuple[int, int]:
    """Number of inputs, of heads."""
    return len(inputs), inputs[plan.m_max + 1].shape[1]
