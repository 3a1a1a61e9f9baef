"""``couple`` in Triton: forward, backward, and the backward of the backward; mathematics in ``docs/kernels.md``.

One program does one edge and one degree l1, all channels side by side in one warp (more above 256 channels).  Degrees
share nothing but the edge: a path reads one degree and has weights of its own, so that everything summed over paths,
orders and channels stays inside a program.  Rows of the Wigner matrix are scalars, rows of features are vectors of
channels in registers, read and written once with neighbouring threads at neighbouring addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from denskit.geometry.so2 import CouplePlan, rows_of
from denskit.nn.fused.triton_common import (
    AtomSums,
    add_rows_at,
    contiguous,
    count,
    empty_wigner_grad,
    launch,
    load_rows,
    pick,
    plus,
    plus_at,
    rows_used,
    store_outer,
    store_outers,
    turned,
    turned_back,
    warps,
    zeros_like_rows,
)

# In a table, a degree is (l1, channels, rows in the edge frame, paths); a path is (first of its weights, entries); an
# entry is (block, numbers of an edge in the block, where the path's row begins among them, row of the degree, signed
# coefficient): out[block][start + c] = coefficient * weight[c] * row[c].
DEGREE, CHANNELS, ROWS, PATHS = (tl.constexpr(i) for i in range(4))
WEIGHT, ENTRIES = (tl.constexpr(i) for i in range(2))
BLOCK, SIZE, START, ROW, COEFFICIENT = (tl.constexpr(i) for i in range(5))

MOST_ENTRIES = 48  # in one kernel: compilation takes time that grows with the square of this


@cache
def _degrees(plan: CouplePlan) -> tuple[Any, ...]:
    """The table of all degrees of a plan."""
    entries: dict[int, list[tuple[int, int, int, int, float]]] = {}
    for index, block in enumerate(plan.blocks):
        rows = rows_of(block.m)
        for path in block.paths:
            for row in range(rows):
                taken = row if path.even else 1 - row  # an odd path turns (+m, -m) to (in(-m), -in(+m))
                sign = -1.0 if not path.even and row == 1 else 1.0
                entry = (
                    index,
                    rows * block.width,
                    row * block.width + path.column,
                    max(2 * block.m - 1, 0) + taken,
                    sign * path.coefficient,
                )
                entries.setdefault(path.weight, []).append(entry)
    paths: list[list[Any]] = [[] for _ in plan.channels]
    weight = 0
    for l1 in (path.l1 for into in plan.paths for path in into):
        paths[l1].append((weight, tuple(entries.get(weight, ()))))
        weight += plan.channels[l1]
    return tuple((l, c, rows_used(l, plan.m_max), tuple(paths[l])) for l, c in enumerate(plan.channels))


@cache
def _launches(plan: CouplePlan) -> tuple[tuple[Any, ...], ...]:
    """The table in parts, one for each launch: up to l_max = 2 a single one, beyond at most MOST_ENTRIES each."""
    launches: list[list[Any]] = []
    entries = 0
    for degree in _degrees(plan):
        more = sum(len(path[ENTRIES.value]) for path in degree[PATHS.value])
        if not launches or entries + more > MOST_ENTRIES:
            launches.append([])
            entries = 0
        launches[-1].append(degree)
        entries += more
    return tuple(tuple(degrees) for degrees in launches)


@triton.jit
def _place(blocks: tl.tuple, edge: tl.tensor, ENTRY: tl.constexpr) -> tl.tensor:
    """Where an entry's row of an edge begins."""
    return blocks[pick(ENTRY, BLOCK)] + edge * pick(ENTRY, SIZE) + pick(ENTRY, START)


@triton.jit
def _matrix(matrices: tl.tuple, edge: tl.tensor, L: tl.constexpr) -> tl.tensor:
    """Where the matrix of an edge begins."""
    return matrices[L] + edge * ((2 * L + 1) * (2 * L + 1))


@triton.jit
def _both_ends(a: tl.tuple, b: tl.tuple, i: tl.tensor, j: tl.tensor, L: tl.constexpr, C: tl.constexpr) -> tl.tuple:
    """Rows of one degree of z = a[i] + b[j]."""
    DIM: tl.constexpr = 2 * L + 1
    c = tl.arange(0, triton.next_power_of_2(C))
    return plus(load_rows(a[L] + i * (DIM * C), c, c < C, DIM, C), load_rows(b[L] + j * (DIM * C), c, c < C, DIM, C))


@triton.jit
def _add_both_ends(
    a: tl.tuple,
    b: tl.tuple,
    a_rows: tl.tensor,
    b_rows: tl.tensor,
    edge: tl.tensor,
    gz: tl.tuple,
    L: tl.constexpr,
    C: tl.constexpr,
) -> None:
    """Add the gradient of z to the sums of both ends of the edge."""
    DIM: tl.constexpr = 2 * L + 1
    c = tl.arange(0, triton.next_power_of_2(C))
    add_rows_at(a[L] + tl.load(a_rows + edge) * (DIM * C), gz, c, c < C, C)
    add_rows_at(b[L] + tl.load(b_rows + edge) * (DIM * C), gz, c, c < C, C)


@triton.jit
def _forward(
    a: tl.tuple,
    b: tl.tuple,
    source: tl.tensor,
    target: tl.tensor,
    wigner: tl.tuple,
    radial: tl.tensor,
    out: tl.tuple,
    DEGREES: tl.constexpr,
    NUM_WEIGHTS: tl.constexpr,
) -> None:
    edge = tl.program_id(0).to(tl.int64)
    i, j = tl.load(source + edge), tl.load(target + edge)
    for d in tl.static_range(count(DEGREES)):
        if tl.program_id(1) == d:
            z = _both_ends(a, b, i, j, pick(DEGREES, d, DEGREE), pick(DEGREES, d, CHANNELS))
            _forward_degree(edge, z, wigner, radial + edge * NUM_WEIGHTS, out, pick(DEGREES, d))


@triton.jit
def _forward_degree(
    edge: tl.tensor, z: tl.tuple, wigner: tl.tuple, weights: tl.tensor, out: tl.tuple, TABLE: tl.constexpr
) -> None:
    c = tl.arange(0, z[0].shape[0])
    mask = c < pick(TABLE, CHANNELS)
    r = turned(_matrix(wigner, edge, pick(TABLE, DEGREE)), z, pick(TABLE, ROWS))
    for k in tl.static_range(count(TABLE, PATHS)):
        weight = tl.load(weights + pick(TABLE, PATHS, k, WEIGHT) + c, mask=mask, other=0.0)
        for n in tl.static_range(count(TABLE, PATHS, k, ENTRIES)):
            y = pick(TABLE, PATHS, k, ENTRIES, n, COEFFICIENT) * weight * r[pick(TABLE, PATHS, k, ENTRIES, n, ROW)]
            tl.store(_place(out, edge, pick(TABLE, PATHS, k, ENTRIES, n)) + c, y, mask=mask)


@triton.jit
def _backward(
    a: tl.tuple,
    b: tl.tuple,
    source: tl.tensor,
    target: tl.tensor,
    wigner: tl.tuple,
    radial: tl.tensor,
    grads: tl.tuple,
    a_rows: tl.tensor,
    b_rows: tl.tensor,
    a_grad: tl.tuple,
    b_grad: tl.tuple,
    wigner_grad: tl.tuple,
    radial_grad: tl.tensor,
    DEGREES: tl.constexpr,
    NUM_WEIGHTS: tl.constexpr,
) -> None:
    edge = tl.program_id(0).to(tl.int64)
    i, j = tl.load(source + edge), tl.load(target + edge)
    weights, weights_grad = radial + edge * NUM_WEIGHTS, radial_grad + edge * NUM_WEIGHTS
    for d in tl.static_range(count(DEGREES)):
        if tl.program_id(1) == d:
            z = _both_ends(a, b, i, j, pick(DEGREES, d, DEGREE), pick(DEGREES, d, CHANNELS))
            gz = _backward_degree(edge, z, wigner, weights, grads, wigner_grad, weights_grad, pick(DEGREES, d))
            _add_both_ends(
                a_grad, b_grad, a_rows, b_rows, edge, gz, pick(DEGREES, d, DEGREE), pick(DEGREES, d, CHANNELS)
            )


@triton.jit
def _backward_degree(
    edge: tl.tensor,
    z: tl.tuple,
    wigner: tl.tuple,
    weights: tl.tensor,
    grads: tl.tuple,
    wigner_grad: tl.tuple,
    weights_grad: tl.tensor,
    TABLE: tl.constexpr,
) -> tl.tuple:
    """Write gradients of the matrix and of the weights; return that of z."""
    c = tl.arange(0, z[0].shape[0])
    mask = c < pick(TABLE, CHANNELS)
    matrix = _matrix(wigner, edge, pick(TABLE, DEGREE))
    r = turned(matrix, z, pick(TABLE, ROWS))
    gr = zeros_like_rows(z[0], pick(TABLE, ROWS))
    for k in tl.static_range(count(TABLE, PATHS)):
        weight = tl.load(weights + pick(TABLE, PATHS, k, WEIGHT) + c, mask=mask, other=0.0)
        gw = tl.zeros_like(weight)
        for n in tl.static_range(count(TABLE, PATHS, k, ENTRIES)):
            gy = tl.load(_place(grads, edge, pick(TABLE, PATHS, k, ENTRIES, n)) + c, mask=mask, other=0.0)
            gy *= pick(TABLE, PATHS, k, ENTRIES, n, COEFFICIENT)
            gw += gy * r[pick(TABLE, PATHS, k, ENTRIES, n, ROW)]
            gr = plus_at(gr, pick(TABLE, PATHS, k, ENTRIES, n, ROW), gy * weight)
        tl.store(weights_grad + pick(TABLE, PATHS, k, WEIGHT) + c, gw, mask=mask)
    store_outer(_matrix(wigner_grad, edge, pick(TABLE, DEGREE)), gr, z)
    return turned_back(matrix, gr, len(z))


@triton.jit
def _double_backward(
    a: tl.tuple,
    b: tl.tuple,
    source: tl.tensor,
    target: tl.tensor,
    wigner: tl.tuple,
    radial: tl.tensor,
    grads: tl.tuple,
    h_a: tl.tuple,
    h_b: tl.tuple,
    h_wigner: tl.tuple,
    h_radial: tl.tensor,
    a_rows: tl.tensor,
    b_rows: tl.tensor,
    a_grad: tl.tuple,
    b_grad: tl.tuple,
    wigner_grad: tl.tuple,
    radial_grad: tl.tensor,
    grads_grad: tl.tuple,
    DEGREES: tl.constexpr,
    NUM_WEIGHTS: tl.constexpr,
) -> None:
    edge = tl.program_id(0).to(tl.int64)
    i, j = tl.load(source + edge), tl.load(target + edge)
    weights, h_weights = radial + edge * NUM_WEIGHTS, h_radial + edge * NUM_WEIGHTS
    weights_grad = radial_grad + edge * NUM_WEIGHTS
    for d in tl.static_range(count(DEGREES)):
        if tl.program_id(1) == d:
            z = _both_ends(a, b, i, j, pick(DEGREES, d, DEGREE), pick(DEGREES, d, CHANNELS))
            hz = _both_ends(h_a, h_b, i, j, pick(DEGREES, d, DEGREE), pick(DEGREES, d, CHANNELS))
            dz = _double_backward_degree(
                edge,
                z,
                hz,
                wigner,
                h_wigner,
                weights,
                h_weights,
                grads,
                wigner_grad,
                weights_grad,
                grads_grad,
                pick(DEGREES, d),
            )
            _add_both_ends(
                a_grad, b_grad, a_rows, b_rows, edge, dz, pick(DEGREES, d, DEGREE), pick(DEGREES, d, CHANNELS)
            )


@triton.jit
def _double_backward_degree(
    edge: tl.tensor,
    z: tl.tuple,
    hz: tl.tuple,
    wigner: tl.tuple,
    h_wigner: tl.tuple,
    weights: tl.tensor,
    h_weights: tl.tensor,
    grads: tl.tuple,
    wigner_grad: tl.tuple,
    weights_grad: tl.tensor,
    grads_grad: tl.tuple,
    TABLE: tl.constexpr,
) -> tl.tuple:
    """Write gradients of the matrix, the weights and the gradients; return that of z.

    What is differentiated is <hr, q> + <r, p> with r = D z, hr = D hz + hD z.
    """
    c = tl.arange(0, z[0].shape[0])
    mask = c < pick(TABLE, CHANNELS)
    matrix = _matrix(wigner, edge, pick(TABLE, DEGREE))
    h_matrix = _matrix(h_wigner, edge, pick(TABLE, DEGREE))
    r = turned(matrix, z, pick(TABLE, ROWS))
    hr = turned(matrix, hz, pick(TABLE, ROWS))
    if len(z) > 1:  # the matrix of degree 0 is the constant 1
        hr = plus(hr, turned(h_matrix, z, pick(TABLE, ROWS)))
    p = zeros_like_rows(z[0], pick(TABLE, ROWS))
    q = zeros_like_rows(z[0], pick(TABLE, ROWS))
    for k in tl.static_range(count(TABLE, PATHS)):
        w = tl.load(weights + pick(TABLE, PATHS, k, WEIGHT) + c, mask=mask, other=0.0)
        hw = tl.load(h_weights + pick(TABLE, PATHS, k, WEIGHT) + c, mask=mask, other=0.0)
        dw = tl.zeros_like(w)
        for n in tl.static_range(count(TABLE, PATHS, k, ENTRIES)):
            gy = tl.load(_place(grads, edge, pick(TABLE, PATHS, k, ENTRIES, n)) + c, mask=mask, other=0.0)
            gy *= pick(TABLE, PATHS, k, ENTRIES, n, COEFFICIENT)
            dw += gy * hr[pick(TABLE, PATHS, k, ENTRIES, n, ROW)]
            p = plus_at(p, pick(TABLE, PATHS, k, ENTRIES, n, ROW), gy * hw)
            q = plus_at(q, pick(TABLE, PATHS, k, ENTRIES, n, ROW), gy * w)
            dy = w * hr[pick(TABLE, PATHS, k, ENTRIES, n, ROW)] + hw * r[pick(TABLE, PATHS, k, ENTRIES, n, ROW)]
            dy *= pick(TABLE, PATHS, k, ENTRIES, n, COEFFICIENT)
            tl.store(_place(grads_grad, edge, pick(TABLE, PATHS, k, ENTRIES, n)) + c, dy, mask=mask)
        tl.store(weights_grad + pick(TABLE, PATHS, k, WEIGHT) + c, dw, mask=mask)
    store_outers(_matrix(wigner_grad, edge, pick(TABLE, DEGREE)), p, z, q, hz)
    dz = turned_back(matrix, p, len(z))
    if len(z) > 1:
        dz = plus(dz, turned_back(h_matrix, q, len(z)))
    return dz


def couple_forward(
    plan: CouplePlan,
    at_source: Sequence[Tensor],
    at_target: Sequence[Tensor],
    source: Tensor,
    target: Tensor,
    wigner: Sequence[Tensor],
    radial: Tensor,
) -> list[Tensor]:
    """See :func:`denskit.nn.fused.reference.couple`."""
    out = tuple(radial.new_empty(len(radial), rows_of(block.m), block.width) for block in plan.blocks)
    inputs = _inputs(at_source, at_target, source, target, wigner, radial)
    _launch(_forward, plan, *inputs, out)
    return list(out)


def couple_backward(
    plan: CouplePlan,
    at_source: Sequence[Tensor],
    at_target: Sequence[Tensor],
    source: Tensor,
    target: Tensor,
    wigner: Sequence[Tensor],
    radial: Tensor,
    grads: Sequence[Tensor],
) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
    """Gradients of at_source, at_target, wigner and radial from those of the outputs."""
    inputs = _inputs(at_source, at_target, source, target, wigner, radial)
    a_grad, b_grad = _sums(at_source, source), _sums(at_target, target)
    wigner_grad, radial_grad = empty_wigner_grad(wigner, plan.m_max), torch.empty_like(inputs[-1])
    _launch(
        _backward,
        plan,
        *inputs,
        contiguous(grads),
        a_grad.rows,
        b_grad.rows,
        a_grad.buffers,
        b_grad.buffers,
        wigner_grad,
        radial_grad,
    )
    return a_grad.result(), b_grad.result(), list(wigner_grad), radial_grad


def couple_double_backward(
    plan: CouplePlan,
    at_source: Sequence[Tensor],
    at_target: Sequence[Tensor],
    source: Tensor,
    target: Tensor,
    wigner: Sequence[Tensor],
    radial: Tensor,
    grads: Sequence[Tensor],
    h_source: Sequence[Tensor],
    h_target: Sequence[Tensor],
    h_wigner: Sequence[Tensor],
    h_radial: Tensor,
) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor, list[Tensor]]:
    """Gradients of at_source, at_target, wigner, radial and grads from those (h) of what couple_backward returned."""
    inputs = _inputs(at_source, at_target, source, target, wigner, radial)
    a_grad, b_grad = _sums(at_source, source), _sums(at_target, target)
    wigner_grad, radial_grad = empty_wigner_grad(wigner, plan.m_max), torch.empty_like(inputs[-1])
    grads = contiguous(grads)
    grads_grad = tuple(torch.empty_like(grad) for grad in grads)
    _launch(
        _double_backward,
        plan,
        *inputs,
        grads,
        contiguous(h_source),
        contiguous(h_target),
        contiguous(h_wigner),
        h_radial.contiguous(),
        a_grad.rows,
        b_grad.rows,
        a_grad.buffers,
        b_grad.buffers,
        wigner_grad,
        radial_grad,
        grads_grad,
    )
    return a_grad.result(), b_grad.result(), list(wigner_grad), radial_grad, list(grads_grad)


def _inputs(
    at_source: Sequence[Tensor],
    at_target: Sequence[Tensor],
    source: Tensor,
    target: Tensor,
    wigner: Sequence[Tensor],
    radial: Tensor,
) -> tuple[Any, ...]:
    """The arguments all three kernels begin with."""
    features = (contiguous(at_source), contiguous(at_target))
    return (*features, source.contiguous(), target.contiguous(), contiguous(wigner), radial.contiguous())


def _sums(like: Sequence[Tensor], place: Tensor) -> AtomSums:
    """Memory for gradients of the features at one end."""
    return AtomSums(place, [tuple(x.shape) for x in like], like[0])


def _launch(kernel: Any, plan: CouplePlan, *arguments: Any) -> None:
    constants = {"NUM_WEIGHTS": plan.num_weights, "num_warps": warps(plan.channels)}
    edges = len(arguments[2])
    for degrees in _launches(plan):
        launch(kernel, (edges, len(degrees)), *arguments, DEGREES=degrees, **constants)
