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
from denskit.models.equiformer.kernels.numba_rows import add, add_two, clear_matrices, outer, rotate, rotate_back, zero
from denskit.models.equiformer.kernels.numba_threads import Layout, number_of, run, unwritten
from denskit.models.equiformer.kernels.numba_vectors import Code, Lanes, at, operation
from denskit.models.equiformer.kernels.plan import Tensors

_Row = tuple[Any, Any, Any]  # coefficient, place in r, place in the block


@cache
def _layout(plan: CouplePlan, dtype: torch.dtype) -> Layout:
    """Tables: paths at one |m| each, their coefficients, degrees, the widths of the blocks, m_max, radial weights.

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
    degrees = np.array(list(zip(places, plan.channels, strict=True)), np.int64)
    widths = np.array([block.width for block in plan.blocks], np.int64)
    factors = np.array(coefficients, number_of(dtype))
    return Layout(
        tables=(np.array(paths, np.int64), factors, degrees, widths, plan.m_max, plan.num_weights),
        shapes=tuple((rows_of(block.m), block.width) for block in plan.blocks),
        room=(6, sum(sizes)),
        number=number_of(dtype),
    )


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
def _clear(sums, atoms, degrees, like):
    """Zero the sums at the atoms."""
    for l in range(len(degrees)):
        zero(at(sums[l], like), 0, atoms * (2 * l + 1) * degrees[l, 1])


# Tensors of a kernel: source, target, inputs (features at the source and at the target by l, Wigner matrices by l,
# radial weights), gradients of the outputs, cotangents in the order of the inputs, then results: of the matrices and
# radial weights, of the gradients, and the sums at the atoms.


@kernel
def _forward(first, last, tensors, paths, coefficients, degrees, widths, m_max, num_weights, room):
    count = len(degrees)
    source, target, x = at(tensors[0], widths), at(tensors[1], widths), tensors[2:]
    y, wigner, radial, out = x[count:], x[2 * count :], at(x[3 * count], room), x[3 * count + 1 :]
    z, r = room[0], room[1]
    for e in range(first, last):
        _gather(z, x, y, source[e], target[e], degrees)
        zero(r, 0, len(r))
        _rotate(r, z, wigner, e, degrees, m_max)
        for p in range(len(paths)):
            block, rows, plus, minus, column, weight, n = paths[p]
            w, width, value = e * num_weights + weight, widths[block], at(out[block], room)
            c, d = coefficients[p]
            path(value, rows * e * width + column, width, rows, c, d, radial, w, r, plus, minus, n)


@kernel
def _backward(first, last, tensors, atoms, paths, coefficients, degrees, widths, m_max, num_weights, room):
    count = len(degrees)
    source, target, x = at(tensors[0], widths), at(tensors[1], widths), tensors[2:]
    y, wigner, radial, grads = x[count:], x[2 * count :], at(x[3 * count], room), x[3 * count + 1 :]
    g_wigner = grads[len(widths) :]
    g_radial, g_x, g_y = at(g_wigner[count], room), g_wigner[count + 1 :], g_wigner[2 * count + 1 :]
    z, r, g_r = room[0], room[1], room[2]
    _clear(g_x, atoms, degrees, room)
    _clear(g_y, atoms, degrees, room)
    for e in range(first, last):
        _gather(z, x, y, source[e], target[e], degrees)
        zero(r, 0, len(r))
        _rotate(r, z, wigner, e, degrees, m_max)
        zero(g_r, 0, len(r))
        zero(g_radial, e * num_weights, num_weights)
        for p in range(len(paths)):
            block, rows, plus, minus, column, weight, n = paths[p]
            w, width, g = e * num_weights + weight, widths[block], at(grads[block], room)
            c, d = coefficients[p]
            i = rows * e * width + column
            path_backward(g, i, width, rows, c, d, radial, w, r, plus, minus, g_radial, g_r, n)
        clear_matrices(g_wigner, e, count, room)
        _outer(g_wigner, g_r, z, e, degrees, m_max)
        zero(z, 0, len(z))
        _rotate_back(z, g_r, wigner, e, degrees, m_max)
        _scatter(z, g_x, g_y, source[e], target[e], degrees)


@kernel
def _double_backward(first, last, tensors, atoms, paths, coefficients, degrees, widths, m_max, num_weights, room):
    count, blocks = len(degrees), len(widths)
    source, target, x = at(tensors[0], widths), at(tensors[1], widths), tensors[2:]
    y, wigner, radial, grads = x[count:], x[2 * count :], at(x[3 * count], room), x[3 * count + 1 :]
    h_x = grads[blocks:]
    h_y, h_wigner, h_radial = h_x[count:], h_x[2 * count :], at(h_x[3 * count], room)
    d_wigner = h_x[3 * count + 1 :]
    d_radial, d_grads, d_x = at(d_wigner[count], room), d_wigner[count + 1 :], d_wigner[count + 1 + blocks :]
    d_y = d_x[count:]
    z, r, h_z, h_r, by_r, by_h_r = room[0], room[1], room[2], room[3], room[4], room[5]
    _clear(d_x, atoms, degrees, room)
    _clear(d_y, atoms, degrees, room)
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
            g, d_g = at(grads[block], room), at(d_grads[block], room)
            c, d = coefficients[p]
            path_double_backward(
                g, d_g, rows * e * width + column, width, rows, c, d, radial, h_radial, d_radial, w,
                r, h_r, by_r, by_h_r, plus, minus, n,
            )  # fmt: skip
        clear_matrices(d_wigner, e, count, room)
        _outer(d_wigner, by_r, z, e, degrees, m_max)
        _outer(d_wigner, by_h_r, h_z, e, degrees, m_max)
        zero(z, 0, len(z))
        _rotate_back(z, by_r, wigner, e, degrees, m_max)
        _rotate_back(z, by_h_r, h_wigner, e, degrees, m_max)
        _scatter(z, d_x, d_y, s, t, degrees)


def forward(plan: CouplePlan, source: Tensor, target: Tensor, inputs: Tensors) -> list[Tensor]:
    """See :func:`denskit.models.equiformer.kernels.reference.couple`."""
    radial, edges = inputs[-1], len(source)
    layout = _layout(plan, radial.dtype)
    out = [radial.new_empty((edges, *shape)) for shape in layout.shapes]
    run(_forward, layout, edges, (source, target, *inputs, *out))
    return out


def backward(plan: CouplePlan, source: Tensor, target: Tensor, inputs: Tensors, grads: Tensors) -> list[Tensor]:
    """Gradients with respect to the inputs."""
    out = unwritten(inputs)
    _derivative(_backward, plan, (source, target, *inputs, *grads), out)
    return out


def double_backward(
    plan: CouplePlan, source: Tensor, target: Tensor, inputs: Tensors, grads: Tensors, cotangents: Tensors
) -> list[Tensor]:
    """Gradients of :func:`backward` with respect to inputs and grads."""
    out = unwritten((*inputs, *grads))
    _derivative(_double_backward, plan, (source, target, *inputs, *grads, *cotangents), out)
    return out


def _derivative(kernel: Any, plan: CouplePlan, tensors: Tensors, out: Tensors) -> None:
    """Fill gradients: first those of the features, which are sums at the atoms."""
    features, layout = 2 * len(plan.channels), _layout(plan, out[0].dtype)
    run(kernel, layout, len(tensors[0]), (*tensors, *out[features:]), (len(out[0]),), out[:features])
