"""``aggregate`` on CPUs: values times attention, rotated back and summed at the target, without buffers of edges.

out[target] += D^T (a v); trilinear in (v, a, D), and so are its derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from denskit.models.equiformer.kernels.numba_kernel import kernel
from denskit.models.equiformer.kernels.numba_rows import add_total, fill, outer, rotate, rotate_back, zero
from denskit.models.equiformer.kernels.numba_threads import new_sums, parts_of, room, run_parts, sum_of_parts
from denskit.models.equiformer.kernels.numba_vectors import Code, Lanes, at, operation
from denskit.models.equiformer.kernels.plan import AggregatePlan


@cache
def _tables(plan: AggregatePlan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Degrees [D, 2] (l, channels), where each begins [D, m_max + 1] in values[m], widths of values[m]."""
    columns = [[plan.column(l, m) for m in range(plan.m_max + 1)] for l in plan.degrees]
    widths = [plan.width(m) for m in range(plan.m_max + 1)]
    degrees = np.array(list(zip(plan.degrees, plan.channels, strict=True)), np.int64)
    return degrees, np.array(columns, np.int64), np.array(widths, np.int64)


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
def _forward(
    first, last, values, attention, heads, target, wigner, degrees, columns, widths, m_max, out, room
):  # fmt: skip
    weighted, a = room[0], room[1]
    for e in range(first, last):
        for n in range(len(degrees)):
            l, width = degrees[n]
            rows, size = 2 * min(l, m_max) + 1, 2 * l + 1
            _spread(a, attention, e, heads, width // heads)
            for row in range(rows):
                m = (row + 1) // 2
                v = _place(e, row, m, columns[n, m], widths)
                weigh(weighted, row * width, a, at(values[m], attention), v, width)
            to, turns = at(out[n], attention), at(wigner[l], attention)
            rotate_back(to, target[e] * size * width, weighted, 0, turns, e * size * size, rows, size, width)


@kernel
def _backward(
    first, last, values, attention, heads, target, wigner, degrees, columns, widths, m_max,
    grads, g_values, g_attention, g_wigner, room,
):  # fmt: skip
    weighted, u, a, total = room[0], room[1], room[2], room[3]
    for e in range(first, last):
        zero(g_attention, e * heads, heads)
        for n in range(len(degrees)):
            l, width = degrees[n]
            rows, size = 2 * min(l, m_max) + 1, 2 * l + 1
            g, place, matrix = at(grads[n], attention), target[e] * size * width, e * size * size
            _spread(a, attention, e, heads, width // heads)
            zero(total, 0, width)
            zero(u, 0, rows * width)
            rotate(u, 0, g, place, at(wigner[l], attention), matrix, rows, size, width)
            for row in range(rows):
                m = (row + 1) // 2
                v = _place(e, row, m, columns[n, m], widths)
                x, g_x = at(values[m], attention), at(g_values[m], attention)
                weigh_backward(g_x, v, weighted, row * width, total, a, x, u, width)
            _gather_heads(g_attention, e, total, heads, width // heads)
            if l:
                outer(at(g_wigner[l], attention), matrix, weighted, 0, g, place, rows, size, width)


@kernel
def _double_backward(
    first, last, values, attention, heads, target, wigner, degrees, columns, widths, m_max,
    grads, h_values, h_attention, h_wigner, d_values, d_attention, d_wigner, d_grads, room,
):  # fmt: skip
    weighted, u, a, total = room[0], room[1], room[2], room[3]
    changed, h_u, h_a = room[4], room[5], room[6]
    for e in range(first, last):
        zero(d_attention, e * heads, heads)
        for n in range(len(degrees)):
            l, width = degrees[n]
            rows, size = 2 * min(l, m_max) + 1, 2 * l + 1
            g, d_g, place = at(grads[n], attention), at(d_grads[n], attention), target[e] * size * width
            turns, h_turns, matrix = at(wigner[l], attention), at(h_wigner[l], attention), e * size * size
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
                x, h_x, d_x = at(values[m], attention), at(h_values[m], attention), at(d_values[m], attention)
                weigh_double_backward(d_x, v, weighted, changed, i, total, a, h_a, x, h_x, u, h_u, width)
            _gather_heads(d_attention, e, total, heads, width // heads)
            rotate_back(d_g, place, changed, 0, turns, matrix, rows, size, width)
            rotate_back(d_g, place, weighted, 0, h_turns, matrix, rows, size, width)
            if l:
                outer(at(d_wigner[l], attention), matrix, changed, 0, g, place, rows, size, width)


def forward(plan: AggregatePlan, target: Tensor, num_atoms: int, inputs: Sequence[Tensor]) -> list[Tensor]:
    """See :func:`denskit.models.equiformer.kernels.reference.aggregate`."""
    first = inputs[0]
    shapes = [(num_atoms, 2 * l + 1, c) for l, c in zip(plan.degrees, plan.channels, strict=True)]
    return _sums(_forward, plan, target, inputs, (), [first.new_empty(shape) for shape in shapes])


def backward(
    plan: AggregatePlan, target: Tensor, num_atoms: int, inputs: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor]:
    """Gradients with respect to the inputs."""
    out, parts = _results(plan, inputs), parts_of(len(target))
    shared = (*_given(plan, target, inputs), grads, *_split(plan, out))
    run_parts(_backward, parts, shared, [(_room(plan, inputs[0]),) for _ in parts])
    return out


def double_backward(
    plan: AggregatePlan,
    target: Tensor,
    num_atoms: int,
    inputs: Sequence[Tensor],
    grads: Sequence[Tensor],
    cotangents: Sequence[Tensor],
) -> list[Tensor]:
    """Gradients of :func:`backward` with respect to inputs and grads."""
    out = _results(plan, inputs)
    given = (grads, *_split(plan, cotangents), *_split(plan, out))
    return [*out, *_sums(_double_backward, plan, target, inputs, given, grads)]


def _sums(
    kernel: Any,
    plan: AggregatePlan,
    target: Tensor,
    inputs: Sequence[Tensor],
    given: Sequence[Any],
    like: Sequence[Tensor],
) -> list[Tensor]:
    """Run a kernel that sums at the atoms."""
    parts = parts_of(len(target))
    sums = new_sums(like, parts)
    shared = (*_given(plan, target, inputs), *given)
    run_parts(kernel, parts, shared, [(own, _room(plan, inputs[0])) for own in sums])
    return sum_of_parts(sums)


def _results(plan: AggregatePlan, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Memory for gradients; kernels do not write to all of a Wigner matrix."""
    values, attention, wigner = _split(plan, inputs)
    return [*(x.new_empty(x.shape) for x in (*values, attention)), *(x.new_zeros(x.shape) for x in wigner)]


def _given(plan: AggregatePlan, target: Tensor, inputs: Sequence[Tensor]) -> tuple[Any, ...]:
    values, attention, wigner = _split(plan, inputs)
    return (values, attention, attention.shape[1], target, wigner, *_tables(plan), plan.m_max)


def _split(plan: AggregatePlan, tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tensor, Sequence[Tensor]]:
    """Values by m, attention, Wigner matrices by l."""
    orders = plan.m_max + 1
    return tensors[:orders], tensors[orders], tensors[orders + 1 :]


def _room(plan: AggregatePlan, like: Tensor) -> np.ndarray:
    """Buffers for seven sets of rows of one degree of one edge."""
    sizes = [(2 * l + 1) * c for l, c in zip(plan.degrees, plan.channels, strict=True)]
    return room(7, max(sizes), like)
