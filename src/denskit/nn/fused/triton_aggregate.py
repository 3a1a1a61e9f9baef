"""``aggregate`` in Triton: forward, backward, and the backward of the backward; mathematics in ``docs/kernels.md``.

One program does one edge: all degrees one after another, because the gradient of an attention weight is a sum over all
of them; of each degree all channels side by side in one warp (more above 256 channels).  In the forward, where degrees
share nothing, every degree has a program of its own.  The Wigner matrix is read as scalars; sums at the targets are
atomic, or per edge (see AtomSums).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from denskit.geometry.so2 import rows_of
from denskit.nn.fused.plan import AggregatePlan
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
    store_outer,
    turned,
    turned_back,
    warps,
)

# In the table of a plan, a degree is (l, channels, rows); a row is (m, numbers of an edge in the values of order m,
# start among them).
L, CHANNELS, ROWS = (tl.constexpr(i) for i in range(3))
ORDER, SIZE, START = (tl.constexpr(i) for i in range(3))


@cache
def _degrees(plan: AggregatePlan) -> tuple[Any, ...]:
    """The table of a plan."""
    degrees = []
    for l, channels in zip(plan.degrees, plan.channels, strict=True):
        orders = [(m, row) for m in range(min(l, plan.m_max) + 1) for row in range(rows_of(m))]
        rows = [(m, rows_of(m) * plan.width(m), row * plan.width(m) + plan.column(l, m)) for m, row in orders]
        degrees.append((l, channels, tuple(rows)))
    return tuple(degrees)


@triton.jit
def _at(tensors: tl.tuple, edge: tl.tensor, c: tl.tensor, ROW: tl.constexpr) -> tl.tensor:
    """Pointers to channels c of a row."""
    return tensors[pick(ROW, ORDER)] + edge * pick(ROW, SIZE) + pick(ROW, START) + c


@triton.jit
def _values(tensors: tl.tuple, edge: tl.tensor, c: tl.tensor, DEGREE: tl.constexpr) -> tl.tuple:
    """Rows of one degree out of the orders."""
    rows: tl.tuple = ()
    for k in tl.static_range(count(DEGREE, ROWS)):
        start = _at(tensors, edge, c, pick(DEGREE, ROWS, k))
        rows += (tl.load(start, mask=c < pick(DEGREE, CHANNELS), other=0.0),)
    return rows


@triton.jit
def _of_heads(weights: tl.tensor, edge: tl.tensor, c: tl.tensor, C: tl.constexpr, HEADS: tl.constexpr) -> tl.tensor:
    """Weight [E, HEADS] of the head that each channel belongs to."""
    return tl.load(weights + edge * HEADS + c // (C // HEADS), mask=c < C, other=0.0)


@triton.jit
def _times(a: tl.tuple, factor: tl.tensor) -> tl.tuple:
    rows: tl.tuple = ()
    for k in tl.static_range(len(a)):
        rows += (a[k] * factor,)
    return rows


@triton.jit
def _inner_product(a: tl.tuple, b: tl.tuple) -> tl.tensor:
    """Sum over rows."""
    product = a[0] * b[0]
    for k in tl.static_range(1, len(a)):
        product += a[k] * b[k]
    return product


@triton.jit
def _by_head(x: tl.tensor, C: tl.constexpr, HEADS: tl.constexpr) -> tl.tuple:
    """Sums over the channels of each head."""
    head = tl.arange(0, x.shape[0]) // (C // HEADS)
    sums: tl.tuple = ()
    for h in tl.static_range(HEADS):
        sums += (tl.sum(tl.where(head == h, x, 0.0), axis=0),)
    return sums


@triton.jit
def _forward(
    values: tl.tuple,
    attention: tl.tensor,
    wigner: tl.tuple,
    rows: tl.tensor,
    out: tl.tuple,
    DEGREES: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    edge = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + edge)
    for d in tl.static_range(count(DEGREES)):
        if tl.program_id(1) == d:
            _forward_degree(
                edge,
                values,
                attention,
                wigner[pick(DEGREES, d, L)],
                row,
                out[d],
                pick(DEGREES, d),
                2 * pick(DEGREES, d, L) + 1,
                pick(DEGREES, d, CHANNELS),
                HEADS,
            )


@triton.jit
def _forward_degree(
    edge: tl.tensor,
    values: tl.tuple,
    attention: tl.tensor,
    matrix: tl.tensor,
    row: tl.tensor,
    out: tl.tensor,
    DEGREE: tl.constexpr,
    DIM: tl.constexpr,
    C: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    c = tl.arange(0, triton.next_power_of_2(C))
    weighted = _times(_values(values, edge, c, DEGREE), _of_heads(attention, edge, c, C, HEADS))
    add_rows_at(out + row * (DIM * C), turned_back(matrix + edge * (DIM * DIM), weighted, DIM), c, c < C, C)


@triton.jit
def _backward(
    values: tl.tuple,
    attention: tl.tensor,
    target: tl.tensor,
    wigner: tl.tuple,
    grads: tl.tuple,
    values_grad: tl.tuple,
    attention_grad: tl.tensor,
    wigner_grad: tl.tuple,
    DEGREES: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    edge = tl.program_id(0).to(tl.int64)
    atom = tl.load(target + edge)
    for d in tl.static_range(count(DEGREES)):
        sums = _backward_degree(
            edge,
            atom,
            values,
            attention,
            wigner[pick(DEGREES, d, L)],
            grads[d],
            values_grad,
            wigner_grad[pick(DEGREES, d, L)],
            pick(DEGREES, d),
            2 * pick(DEGREES, d, L) + 1,
            pick(DEGREES, d, CHANNELS),
            HEADS,
        )
        if d == 0:
            by_head = sums
        else:
            by_head = plus(by_head, sums)
    for h in tl.static_range(HEADS):
        tl.store(attention_grad + edge * HEADS + h, by_head[h])


@triton.jit
def _backward_degree(
    edge: tl.tensor,
    atom: tl.tensor,
    values: tl.tuple,
    attention: tl.tensor,
    wigner: tl.tensor,
    grads: tl.tensor,
    values_grad: tl.tuple,
    wigner_grad: tl.tensor,
    DEGREE: tl.constexpr,
    DIM: tl.constexpr,
    C: tl.constexpr,
    HEADS: tl.constexpr,
) -> tl.tuple:
    """Write gradients of values and matrix; return what the degree adds to the gradient of each head's weight."""
    c = tl.arange(0, triton.next_power_of_2(C))
    matrix = edge * (DIM * DIM)
    v = _values(values, edge, c, DEGREE)
    alpha = _of_heads(attention, edge, c, C, HEADS)
    g = load_rows(grads + atom * (DIM * C), c, c < C, DIM, C)
    u = turned(wigner + matrix, g, count(DEGREE, ROWS))
    for k in tl.static_range(len(v)):
        tl.store(_at(values_grad, edge, c, pick(DEGREE, ROWS, k)), alpha * u[k], mask=c < C)
    store_outer(wigner_grad + matrix, _times(v, alpha), g)
    return _by_head(_inner_product(v, u), C, HEADS)


@triton.jit
def _double_backward(
    values: tl.tuple,
    attention: tl.tensor,
    target: tl.tensor,
    wigner: tl.tuple,
    grads: tl.tuple,
    h_values: tl.tuple,
    h_attention: tl.tensor,
    h_wigner: tl.tuple,
    rows: tl.tensor,
    values_grad: tl.tuple,
    attention_grad: tl.tensor,
    wigner_grad: tl.tuple,
    grads_grad: tl.tuple,
    DEGREES: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    edge = tl.program_id(0).to(tl.int64)
    atom, row = tl.load(target + edge), tl.load(rows + edge)
    for d in tl.static_range(count(DEGREES)):
        sums = _double_backward_degree(
            edge,
            atom,
            row,
            values,
            attention,
            wigner[pick(DEGREES, d, L)],
            grads[d],
            h_values,
            h_attention,
            h_wigner[pick(DEGREES, d, L)],
            values_grad,
            wigner_grad[pick(DEGREES, d, L)],
            grads_grad[d],
            pick(DEGREES, d),
            2 * pick(DEGREES, d, L) + 1,
            pick(DEGREES, d, CHANNELS),
            HEADS,
        )
        if d == 0:
            by_head = sums
        else:
            by_head = plus(by_head, sums)
    for h in tl.static_range(HEADS):
        tl.store(attention_grad + edge * HEADS + h, by_head[h])


@triton.jit
def _double_backward_degree(
    edge: tl.tensor,
    atom: tl.tensor,
    row: tl.tensor,
    values: tl.tuple,
    attention: tl.tensor,
    wigner: tl.tensor,
    grads: tl.tensor,
    h_values: tl.tuple,
    h_attention: tl.tensor,
    h_wigner: tl.tensor,
    values_grad: tl.tuple,
    wigner_grad: tl.tensor,
    grads_grad: tl.tensor,
    DEGREE: tl.constexpr,
    DIM: tl.constexpr,
    C: tl.constexpr,
    HEADS: tl.constexpr,
) -> tl.tuple:
    """Write gradients of values, matrix and grads; return what the degree adds to that of each head's weight.

    With w = alpha v and h its change, h = alpha h_v + h_alpha v, what is differentiated is <h, D g> + <w, hD g>.
    """
    c = tl.arange(0, triton.next_power_of_2(C))
    matrix = edge * (DIM * DIM)
    v, hv = _values(values, edge, c, DEGREE), _values(h_values, edge, c, DEGREE)
    alpha = _of_heads(attention, edge, c, C, HEADS)
    h_alpha = _of_heads(h_attention, edge, c, C, HEADS)
    h = plus(_times(hv, alpha), _times(v, h_alpha))
    g = load_rows(grads + atom * (DIM * C), c, c < C, DIM, C)
    u = turned(wigner + matrix, g, count(DEGREE, ROWS))
    d_alpha = _inner_product(hv, u)
    d_values = _times(u, h_alpha)
    d_grads = turned_back(wigner + matrix, h, DIM)
    if DIM > 1:  # hD: the matrix of degree 0 is the constant 1
        hu = turned(h_wigner + matrix, g, count(DEGREE, ROWS))
        d_alpha += _inner_product(v, hu)
        d_values = plus(d_values, _times(hu, alpha))
        d_grads = plus(d_grads, turned_back(h_wigner + matrix, _times(v, alpha), DIM))
    for k in tl.static_range(len(v)):
        tl.store(_at(values_grad, edge, c, pick(DEGREE, ROWS, k)), d_values[k], mask=c < C)
    add_rows_at(grads_grad + row * (DIM * C), d_grads, c, c < C, C)
    store_outer(wigner_grad + matrix, h, g)
    return _by_head(d_alpha, C, HEADS)


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
    out = AtomSums(target, shapes, attention)
    launch(
        _forward,
        (len(attention), len(plan.degrees)),
        contiguous(values),
        attention.contiguous(),
        contiguous(wigner),
        out.rows,
        out.buffers,
        **_constants(plan, attention),
    )
    return out.result()


def aggregate_backward(
    plan: AggregatePlan,
    values: Sequence[Tensor],
    attention: Tensor,
    target: Tensor,
    wigner: Sequence[Tensor],
    grads: Sequence[Tensor],
) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Gradients of values, attention and wigner from those of the outputs."""
    values, attention = contiguous(values), attention.contiguous()
    values_grad, attention_grad = tuple(torch.empty_like(v) for v in values), torch.empty_like(attention)
    wigner_grad = empty_wigner_grad(wigner, plan.m_max, plan.degrees)
    launch(
        _backward,
        (len(attention),),
        values,
        attention,
        target.contiguous(),
        contiguous(wigner),
        contiguous(grads),
        values_grad,
        attention_grad,
        wigner_grad,
        **_constants(plan, attention),
    )
    return list(values_grad), attention_grad, list(wigner_grad)


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
    """Gradients of values, attention, wigner and grads from those (h) of what aggregate_backward returned."""
    values, attention = contiguous(values), attention.contiguous()
    values_grad, attention_grad = tuple(torch.empty_like(v) for v in values), torch.empty_like(attention)
    wigner_grad = empty_wigner_grad(wigner, plan.m_max, plan.degrees)
    grads_grad = AtomSums(target, [tuple(grad.shape) for grad in grads], attention)
    launch(
        _double_backward,
        (len(attention),),
        values,
        attention,
        target.contiguous(),
        contiguous(wigner),
        contiguous(grads),
        contiguous(h_values),
        h_attention.contiguous(),
        contiguous(h_wigner),
        grads_grad.rows,
        values_grad,
        attention_grad,
        wigner_grad,
        grads_grad.buffers,
        **_constants(plan, attention),
    )
    return list(values_grad), attention_grad, list(wigner_grad), grads_grad.result()


def _constants(plan: AggregatePlan, attention: Tensor) -> dict[str, Any]:
    """What a kernel knows when it is compiled."""
    return {"DEGREES": _degrees(plan), "HEADS": attention.shape[1], "num_warps": warps(plan.channels)}
