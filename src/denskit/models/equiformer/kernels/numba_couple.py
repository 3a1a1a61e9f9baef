"""``couple`` on CPUs: one pass over the edges, with all intermediate values of an edge in the L1 cache.

z = a[source] + b[target], r = D z, and for every path and channel y = c w r with the path's coefficient c and its
radial weight w; on odd paths the rows (+m, -m) are exchanged with a sign.  y is trilinear in (z, D, w), and so are its
derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denskit.geometry.so2 import CouplePlan, rows_of
from denskit.models.equiformer.kernels.numba_kernel import kernel
from denskit.models.equiformer.kernels.numba_rows import add, add_two, outer, rotate, rotate_back, zero
from denskit.models.equiformer.kernels.numba_threads import new_sums, parts_of, room, run_parts, sum_of_parts
from denskit.models.equiformer.kernels.numba_vectors import Code, Lanes, at, operation

_Row = tuple[Any, Any, Any]  # coefficient, place in r, place in the block


@cache
def _tables(plan: CouplePlan, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Paths at one |m| each, their coefficients, degrees, the widths of the blocks.

    A path's row: block, number of rows (1 for m = 0, else 2), the places of rows +m and -m of its l1 in a buffer of all
    degrees (exchanged if the path is odd), first column in the block, first radial weight, channels.  A degree's row:
    its place in the buffer, its channels.
    """
    sizes = [(2 * l + 1) * c for l, c in enumerate(plan.channels)]
    places = [sum(sizes[:l]) for l in range(len(sizes))]
    paths, coefficients = [], []
    for number, block in enumerate(plan.blocks):
        for path in block.paths:
            rows = [0, 0] if block.m == 0 else [2 * block.m - 1, 2 * block.m]
            plus, minus = (places[path.l1] + row * path.width for row in (rows if path.even else reversed(rows)))
            paths.append((number, rows_of(block.m), plus, minus, path.column, path.weight, path.width))
            coefficients.append((path.coefficient, path.coefficient if path.even else -path.coefficient))
    number_type = np.float32 if dtype == torch.float32 else np.float64
    degrees = np.array(list(zip(places, plan.channels, strict=True)), np.int64)
    widths = np.array([block.width for block in plan.blocks], np.int64)
    return np.array(paths, np.int64), np.array(coefficients, number_type), degrees, widths


def _along_rows(
    code: Code, rows: Any, n: Any, both: Sequence[_Row], body: Callable[[Lanes, Sequence[_Row]], None]
) -> None:
    """``body(lanes, rows of a path)``: its row at m = 0, or its two rows (+m, -m)."""

    def first(count: int) -> None:
        code.along(n, lambda lanes: body(lanes, both[:count]))

    code.one_of(rows, (1,), first, lambda: first(2))


@operation
def path(
    code: Code, y: Any, i: Any, width: Any, rows: Any, c: Any, d: Any, radial: Any, w: Any, r: Any,
    plus: Any, minus: Any, n: Any,
) -> None:  # fmt: skip
    """Y = c w r; the rows of -m, ``width`` further on, have the coefficient d."""

    def body(lanes: Lanes, found: Sequence[_Row]) -> None:
        weight = lanes.load(radial, w)
        for factor, of, place in found:
            lanes.store(lanes.mul(lanes.all(factor), weight, lanes.load(r, of)), y, place)

    _along_rows(code, rows, n, [(c, plus, i), (d, minus, code.place(i, 1, width))], body)


@operation
def path_backward(
    code: Code, g: Any, i: Any, width: Any, rows: Any, c: Any, d: Any, radial: Any, w: Any, r: Any,
    plus: Any, minus: Any, g_radial: Any, g_r: Any, n: Any,
) -> None:  # fmt: skip
    """Add the gradients of w and r in ``path``."""

    def body(lanes: Lanes, found: Sequence[_Row]) -> None:
        weight, total = lanes.load(radial, w), lanes.load(g_radial, w)
        for factor, of, place in found:
            gradient = lanes.mul(lanes.all(factor), lanes.load(g, place))
            lanes.add_to(g_r, of, lanes.mul(gradient, weight))
            total = lanes.add(total, lanes.mul(gradient, lanes.load(r, of)))
        lanes.store(total, g_radial, w)

    _along_rows(code, rows, n, [(c, plus, i), (d, minus, code.place(i, 1, width))], body)


@operation
def path_double_backward(
    code: Code, g: Any, d_g: Any, i: Any, width: Any, rows: Any, c: Any, d: Any, radial: Any, h_radial: Any,
    d_radial: Any, w: Any, r: Any, h_r: Any, by_r: Any, by_h_r: Any, plus: Any, minus: Any, n: Any,
) -> None:  # fmt: skip
    """Store the gradient of g in ``path_backward``, add those of w, r and h_r."""

    def body(lanes: Lanes, found: Sequence[_Row]) -> None:
        weight, h_weight, total = (lanes.load(array, w) for array in (radial, h_radial, d_radial))
        for factor, of, place in found:
            scale = lanes.all(factor)
            gradient, h = lanes.mul(scale, lanes.load(g, place)), lanes.load(h_r, of)
            lanes.add_to(by_r, of, lanes.mul(gradient, h_weight))
            lanes.add_to(by_h_r, of, lanes.mul(gradient, weight))
            total = lanes.add(total, lanes.mul(gradient, h))
            both = lanes.add(lanes.mul(weight, h), lanes.mul(h_weight, lanes.load(r, of)))
            lanes.store(lanes.mul(scale, both), d_g, place)
        lanes.store(total, d_radial, w)

    _along_rows(code, rows, n, [(c, plus, i), (d, minus, code.place(i, 1, width))], body)


@kernel
def _gather(z, x, y, s, t, degrees):
    """All degrees of x[s] + y[t] side by side."""
    for l in range(len(degrees)):
        place, width = degrees[l]
        size = (2 * l + 1) * width
        add_two(z, place, at(x[l], z), s * size, at(y[l], z), t * size, size)


@kernel
def _scatter(z, x, y, s, t, degrees):
    """Add z to x[s] and y[t]."""
    for l in range(len(degrees)):
        place, width = degrees[l]
        size = (2 * l + 1) * width
        add(at(x[l], z), s * size, z, place, size)
        add(at(y[l], z), t * size, z, place, size)


@kernel
def _rotate(r, z, wigner, e, degrees, m_max):
    """R += D z, rows of orders up to m_max."""
    for l in range(len(degrees)):
        (place, width), size = degrees[l], 2 * l + 1
        rotate(r, place, z, place, at(wigner[l], z), e * size * size, 2 * min(l, m_max) + 1, size, width)


@kernel
def _rotate_back(z, r, wigner, e, degrees, m_max):
    """Z += D^T r."""
    for l in range(len(degrees)):
        (place, width), size = degrees[l], 2 * l + 1
        rotate_back(z, place, r, place, at(wigner[l], z), e * size * size, 2 * min(l, m_max) + 1, size, width)


@kernel
def _outer(out, r, z, e, degrees, m_max):
    """out[l][e] += r z^T, summed over channels; l = 0 is not rotated and has no gradient."""
    for l in range(1, len(degrees)):
        (place, width), size = degrees[l], 2 * l + 1
        outer(at(out[l], z), e * size * size, r, place, z, place, 2 * min(l, m_max) + 1, size, width)


@kernel
def _forward(
    first, last, x, y, source, target, wigner, radial, num_weights, paths, coefficients, degrees, widths, m_max,
    out, room,
):  # fmt: skip
    z, r = room[0], room[1]
    for e in range(first, last):
        _gather(z, x, y, source[e], target[e], degrees)
        zero(r, 0, len(r))
        _rotate(r, z, wigner, e, degrees, m_max)
        for p in range(len(paths)):
            block, rows, plus, minus, column, weight, n = paths[p]
            w, width, value = e * num_weights + weight, widths[block], at(out[block], radial)
            c, d = coefficients[p]
            path(value, rows * e * width + column, width, rows, c, d, radial, w, r, plus, minus, n)


@kernel
def _backward(
    first, last, x, y, source, target, wigner, radial, num_weights, paths, coefficients, degrees, widths, m_max,
    grads, g_wigner, g_radial, g_x, g_y, room,
):  # fmt: skip
    z, r, g_r = room[0], room[1], room[2]
    for e in range(first, last):
        _gather(z, x, y, source[e], target[e], degrees)
        zero(r, 0, len(r))
        _rotate(r, z, wigner, e, degrees, m_max)
        zero(g_r, 0, len(r))
        zero(g_radial, e * num_weights, num_weights)
        for p in range(len(paths)):
            block, rows, plus, minus, column, weight, n = paths[p]
            w, width, g = e * num_weights + weight, widths[block], at(grads[block], radial)
            c, d = coefficients[p]
            i = rows * e * width + column
            path_backward(g, i, width, rows, c, d, radial, w, r, plus, minus, g_radial, g_r, n)
        _outer(g_wigner, g_r, z, e, degrees, m_max)
        zero(z, 0, len(z))
        _rotate_back(z, g_r, wigner, e, degrees, m_max)
        _scatter(z, g_x, g_y, source[e], target[e], degrees)


@kernel
def _double_backward(
    first, last, x, y, source, target, wigner, radial, num_weights, paths, coefficients, degrees, widths, m_max,
    grads, h_x, h_y, h_wigner, h_radial, d_wigner, d_radial, d_grads, d_x, d_y, room,
):  # fmt: skip
    z, r, h_z, h_r, by_r, by_h_r = room[0], room[1], room[2], room[3], room[4], room[5]
    for e in range(first, last):
        s, t = source[e], target[e]
        _gather(z, x, y, s, t, degrees)
        _gather(h_z, h_x, h_y, s, t, degrees)
        for buffer in (r, h_r, by_r, by_h_r):
            zero(buffer, 0, len(buffer))
        _rotate(r, z, wigner, e, degrees, m_max)
        _rotate(h_r, h_z, wigner, e, degrees, m_max)
        _rotate(h_r, z, h_wigner, e, degrees, m_max)
        zero(d_radial, e * num_weights, num_weights)
        for p in range(len(paths)):
            block, rows, plus, minus, column, weight, n = paths[p]
            w, width = e * num_weights + weight, widths[block]
            g, d_g = at(grads[block], radial), at(d_grads[block], radial)
            c, d = coefficients[p]
            path_double_backward(
                g, d_g, rows * e * width + column, width, rows, c, d, radial, h_radial, d_radial, w,
                r, h_r, by_r, by_h_r, plus, minus, n,
            )  # fmt: skip
        _outer(d_wigner, by_r, z, e, degrees, m_max)
        _outer(d_wigner, by_h_r, h_z, e, degrees, m_max)
        zero(z, 0, len(z))
        _rotate_back(z, by_r, wigner, e, degrees, m_max)
        _rotate_back(z, by_h_r, h_wigner, e, degrees, m_max)
        _scatter(z, d_x, d_y, s, t, degrees)


def forward(plan: CouplePlan, source: Tensor, target: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """See :func:`denskit.models.equiformer.kernels.reference.couple`."""
    radial, parts = inputs[-1], parts_of(len(source))
    out = [radial.new_empty(len(source), rows_of(block.m), block.width) for block in plan.blocks]
    shared = (*_given(plan, source, target, inputs), out)
    run_parts(_forward, parts, shared, [(_room(plan, radial),) for _ in parts])
    return out


def backward(
    plan: CouplePlan, source: Tensor, target: Tensor, inputs: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor]:
    """Gradients with respect to the inputs."""
    return _run(_backward, plan, source, target, inputs, (grads,), ())


def double_backward(
    plan: CouplePlan,
    source: Tensor,
    target: Tensor,
    inputs: Sequence[Tensor],
    grads: Sequence[Tensor],
    cotangents: Sequence[Tensor],
) -> list[Tensor]:
    """Gradients of :func:`backward` with respect to inputs and grads."""
    d_grads = [grad.new_empty(grad.shape) for grad in grads]
    given = (grads, *_split(plan, cotangents))
    return [*_run(_double_backward, plan, source, target, inputs, given, (d_grads,)), *d_grads]


def _run(
    kernel: Any,
    plan: CouplePlan,
    source: Tensor,
    target: Tensor,
    inputs: Sequence[Tensor],
    given: Sequence[Any],
    results: Sequence[Any],
) -> list[Tensor]:
    """Run the kernel of a derivative; its gradients with respect to the inputs."""
    at_source, at_target, wigner, radial = _split(plan, inputs)
    parts, degrees = parts_of(len(source)), len(plan.channels)
    turns, weights = [w.new_zeros(w.shape) for w in wigner], radial.new_empty(radial.shape)
    sums = new_sums([*at_source, *at_target], parts)
    shared = (*_given(plan, source, target, inputs), *given, turns, weights, *results)
    run_parts(kernel, parts, shared, [(own[:degrees], own[degrees:], _room(plan, radial)) for own in sums])
    return [*sum_of_parts(sums), *turns, weights]


def _given(plan: CouplePlan, source: Tensor, target: Tensor, inputs: Sequence[Tensor]) -> tuple[Any, ...]:
    at_source, at_target, wigner, radial = _split(plan, inputs)
    tables = _tables(plan, radial.dtype)
    return (at_source, at_target, source, target, wigner, radial, plan.num_weights, *tables, plan.m_max)


def _split(
    plan: CouplePlan, tensors: Sequence[Tensor]
) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor], Tensor]:
    """Features at the source and at the target by l, Wigner matrices by l, radial weights."""
    degrees = len(plan.channels)
    return tensors[:degrees], tensors[degrees : 2 * degrees], tensors[2 * degrees : 3 * degrees], tensors[-1]


def _room(plan: CouplePlan, like: Tensor) -> np.ndarray:
    """Buffers for six sets of features of one edge."""
    return room(6, sum((2 * l + 1) * c for l, c in enumerate(plan.channels)), like)
