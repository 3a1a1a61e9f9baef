"""``couple`` on CPUs: one pass over the edges, everything between input and output in the first cache.

z = a[source] + b[target], r = D z, and for every path and channel y = c w r, where c is the path's coefficient, w its
radial weight, and rows (+m, -m) change places with a sign on odd paths.  Trilinear in (z, D, w); so are its
derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denskit.geometry.so2 import CouplePlan, rows_of
from denskit.nn.fused.numba_common import array, arrays, inner, kernel, parts_of, run_parts

BLOCK, L1, M, COLUMN, WEIGHT, WIDTH, EVEN = range(7)  # columns of the table of paths


@cache
def _tables(plan: CouplePlan, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Paths [P, 7], coefficients [P], first place of each degree in a buffer of all degrees, its channels."""
    rows, coefficients = [], []
    for number, block in enumerate(plan.blocks):
        for path in block.paths:
            rows.append((number, path.l1, block.m, path.column, path.weight, path.width, path.even))
            coefficients.append(path.coefficient)
    sizes = [(2 * l + 1) * c for l, c in enumerate(plan.channels)]
    places = np.concatenate([[0], np.cumsum(sizes)])
    number_type = np.float32 if dtype == torch.float32 else np.float64
    return np.array(rows, np.int64), np.array(coefficients, number_type), places, np.array(plan.channels, np.int64)


@inner
def _gather(z, x, y, s, t, places):
    """All degrees of x[s] + y[t] side by side."""
    for l in range(len(x)):
        a, b = x[l][s], y[l][t]
        for k in range(a.shape[0]):
            first = places[l] + k * a.shape[1]
            out = z[first : first + a.shape[1]]
            for c in range(len(out)):
                out[c] = a[k, c] + b[k, c]


@inner
def _scatter(z, x, y, s, t, places):
    """Add z to x[s] and y[t]."""
    for l in range(len(x)):
        a, b = x[l][s], y[l][t]
        for k in range(a.shape[0]):
            first = places[l] + k * a.shape[1]
            value = z[first : first + a.shape[1]]
            for c in range(len(value)):
                a[k, c] += value[c]
                b[k, c] += value[c]


@inner
def _turn(r, z, wigner, e, places, channels, m_max, fresh):
    """R = D z, or where not fresh r += D z; only the rows of orders up to m_max."""
    for l in range(len(channels)):
        width, first = channels[l], places[l]
        for row in range(2 * min(l, m_max) + 1):
            out = r[first + row * width : first + (row + 1) * width]
            if fresh:
                out[:] = 0
            for k in range(2 * l + 1):
                d = wigner[l][e, row, k]
                x = z[first + k * width : first + (k + 1) * width]
                for c in range(width):
                    out[c] += d * x[c]


@inner
def _turn_back(z, r, wigner, e, places, channels, m_max, fresh):
    """Z = D^T r, or where not fresh z += D^T r."""
    for l in range(len(channels)):
        width, first = channels[l], places[l]
        for k in range(2 * l + 1):
            out = z[first + k * width : first + (k + 1) * width]
            if fresh:
                out[:] = 0
            for row in range(2 * min(l, m_max) + 1):
                d = wigner[l][e, row, k]
                x = r[first + row * width : first + (row + 1) * width]
                for c in range(width):
                    out[c] += d * x[c]


@inner
def _outer(out, r, z, e, places, channels, m_max):
    """out[l][e] += r z^T, summed over channels; l = 0 is never turned and has no gradient."""
    for l in range(1, len(channels)):
        width, first = channels[l], places[l]
        for row in range(2 * min(l, m_max) + 1):
            x = r[first + row * width : first + (row + 1) * width]
            for k in range(2 * l + 1):
                y = z[first + k * width : first + (k + 1) * width]
                total = x[0] * y[0]
                for c in range(1, width):
                    total += x[c] * y[c]
                out[l][e, row, k] += total


@inner
def _row(m, row, even):
    """Row of a degree that row 0 (+m) or 1 (-m) of a block reads."""
    if m == 0:
        return 0
    return 2 * m - 1 + (row if even else 1 - row)


@kernel
def _forward(
    first, last, x, y, source, target, wigner, radial, paths, coefficients, places, channels, m_max, out, buffers
):
    z, r = buffers[0], buffers[1]
    for e in range(first, last):
        _gather(z, x, y, source[e], target[e], places)
        _turn(r, z, wigner, e, places, channels, m_max, True)
        for p in range(len(paths)):
            block, l1, m, column, weight, width, even = paths[p]
            w = radial[e, weight : weight + width]
            for row in range(1 if m == 0 else 2):
                start = places[l1] + _row(m, row, even) * width
                turned = r[start : start + width]
                coefficient = coefficients[p] if even or row == 0 else -coefficients[p]
                value = out[block][e, row, column : column + width]
                for c in range(width):
                    value[c] = coefficient * w[c] * turned[c]


@kernel
def _backward(
    first, last, x, y, source, target, wigner, radial, paths, coefficients, places, channels, m_max,
    grads, g_x, g_y, g_wigner, g_radial, buffers,
):  # fmt: skip
    z, r, g_r = buffers[0], buffers[1], buffers[2]
    for e in range(first, last):
        _gather(z, x, y, source[e], target[e], places)
        _turn(r, z, wigner, e, places, channels, m_max, True)
        g_r[:] = 0
        g_radial[e, :] = 0
        for p in range(len(paths)):
            block, l1, m, column, weight, width, even = paths[p]
            w, g_w = radial[e, weight : weight + width], g_radial[e, weight : weight + width]
            for row in range(1 if m == 0 else 2):
                start = places[l1] + _row(m, row, even) * width
                turned, g_turned = r[start : start + width], g_r[start : start + width]
                coefficient = coefficients[p] if even or row == 0 else -coefficients[p]
                g = grads[block][e, row, column : column + width]
                for c in range(width):
                    part = coefficient * g[c]
                    g_turned[c] += part * w[c]
                    g_w[c] += part * turned[c]
        _outer(g_wigner, g_r, z, e, places, channels, m_max)
        _turn_back(z, g_r, wigner, e, places, channels, m_max, True)
        _scatter(z, g_x, g_y, source[e], target[e], places)


@kernel
def _double_backward(
    first, last, x, y, source, target, wigner, radial, paths, coefficients, places, channels, m_max,
    grads, h_x, h_y, h_wigner, h_radial, d_x, d_y, d_wigner, d_radial, d_grads, buffers,
):  # fmt: skip
    z, r, h_z, h_r, by_r, by_h_r = buffers[0], buffers[1], buffers[2], buffers[3], buffers[4], buffers[5]
    for e in range(first, last):
        s, t = source[e], target[e]
        _gather(z, x, y, s, t, places)
        _turn(r, z, wigner, e, places, channels, m_max, True)
        _gather(h_z, h_x, h_y, s, t, places)
        _turn(h_r, h_z, wigner, e, places, channels, m_max, True)
        _turn(h_r, z, h_wigner, e, places, channels, m_max, False)
        by_r[:] = 0
        by_h_r[:] = 0
        d_radial[e, :] = 0
        for p in range(len(paths)):
            block, l1, m, column, weight, width, even = paths[p]
            w, h_w = radial[e, weight : weight + width], h_radial[e, weight : weight + width]
            d_w = d_radial[e, weight : weight + width]
            for row in range(1 if m == 0 else 2):
                start = places[l1] + _row(m, row, even) * width
                turned, h_turned = r[start : start + width], h_r[start : start + width]
                to_r, to_h_r = by_r[start : start + width], by_h_r[start : start + width]
                coefficient = coefficients[p] if even or row == 0 else -coefficients[p]
                g = grads[block][e, row, column : column + width]
                d_g = d_grads[block][e, row, column : column + width]
                # loops apart: with more arrays the compiler gives up proving that they do not overlap
                for c in range(width):
                    to_r[c] += coefficient * g[c] * h_w[c]
                    to_h_r[c] += coefficient * g[c] * w[c]
                for c in range(width):
                    d_w[c] += coefficient * g[c] * h_turned[c]
                for c in range(width):
                    d_g[c] = coefficient * (w[c] * h_turned[c] + h_w[c] * turned[c])
        _outer(d_wigner, by_r, z, e, places, channels, m_max)
        _outer(d_wigner, by_h_r, h_z, e, places, channels, m_max)
        _turn_back(z, by_r, wigner, e, places, channels, m_max, True)
        _turn_back(z, by_h_r, h_wigner, e, places, channels, m_max, False)
        _scatter(z, d_x, d_y, s, t, places)


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
    out = [radial.new_empty(len(source), rows_of(block.m), block.width) for block in plan.blocks]
    inputs = _inputs(plan, at_source, at_target, source, target, wigner, radial)
    results = arrays(out)
    run_parts(_forward, parts_of(len(source)), lambda _: (*inputs, results, _buffers(plan, radial)))
    return out


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
    """Gradients with respect to at_source, at_target, wigner and radial."""
    inputs = _inputs(plan, at_source, at_target, source, target, wigner, radial)
    g_wigner, g_radial = [torch.zeros_like(w) for w in wigner], torch.empty_like(radial)
    parts, sums = parts_of(len(source)), _Sums(at_source, at_target)
    given, results = arrays(grads), (arrays(g_wigner), array(g_radial))
    run_parts(_backward, parts, lambda part: (*inputs, given, *sums.of(part), *results, _buffers(plan, radial)))
    return *sums.total(), g_wigner, g_radial


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
    """Gradients of :func:`couple_backward` with respect to at_source, at_target, wigner, radial and grads."""
    inputs = _inputs(plan, at_source, at_target, source, target, wigner, radial)
    d_wigner, d_radial = [torch.zeros_like(w) for w in wigner], torch.empty_like(radial)
    d_grads = [torch.empty_like(grad, memory_format=torch.contiguous_format) for grad in grads]
    parts, sums = parts_of(len(source)), _Sums(at_source, at_target)
    given = (arrays(grads), arrays(h_source), arrays(h_target), arrays(h_wigner), array(h_radial))
    results = (arrays(d_wigner), array(d_radial), arrays(d_grads))
    run_parts(_double_backward, parts, lambda part: (*inputs, *given, *sums.of(part), *results, _buffers(plan, radial)))
    return *sums.total(), d_wigner, d_radial, d_grads


class _Sums:
    """Gradients of the features at both ends: one buffer for each part of the edges, so that threads do not collide."""

    def __init__(self, at_source: Sequence[Tensor], at_target: Sequence[Tensor]) -> None:
        self.like = (at_source, at_target)
        self.buffers: dict[int, tuple[list[Tensor], list[Tensor]]] = {}

    def of(self, part: int) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """Zeros for one part."""
        made = tuple([torch.zeros_like(x, memory_format=torch.contiguous_format) for x in side] for side in self.like)
        self.buffers[part] = (made[0], made[1])
        return arrays(made[0]), arrays(made[1])

    def total(self) -> tuple[list[Tensor], list[Tensor]]:
        """The sums over the parts, in their order."""
        (source, target), *others = (self.buffers[part] for part in sorted(self.buffers))
        for more_source, more_target in others:
            for total, more in zip(source + target, more_source + more_target, strict=True):
                total += more
        return source, target


def _buffers(plan: CouplePlan, like: Tensor) -> np.ndarray:
    """Room for six sets of features of one edge."""
    return torch.empty(6, sum((2 * l + 1) * c for l, c in enumerate(plan.channels)), dtype=like.dtype).numpy()


def _inputs(
    plan: CouplePlan,
    at_source: Sequence[Tensor],
    at_target: Sequence[Tensor],
    source: Tensor,
    target: Tensor,
    wigner: Sequence[Tensor],
    radial: Tensor,
) -> tuple[Any, ...]:
    turns = arrays(wigner[: len(plan.channels)])
    ends = (arrays(at_source), arrays(at_target), array(source), array(target))
    return (*ends, turns, array(radial), *_tables(plan, radial.dtype), plan.m_max)
