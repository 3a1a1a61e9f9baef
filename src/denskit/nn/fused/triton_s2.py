"""SiLU of functions on the sphere in Triton: forward, backward, and the backward of the backward.

The reference is :func:`denskit.nn.s2_activation.s2_silu` without a linear layer.  A column is a pair of a row (an edge
or an atom) and a channel: its coefficients become values at points, and these coefficients again, whatever the other
columns are.  One program does 16 to 128 columns for all points, 16 points at a time, and adds up the coefficients of
the result meanwhile.  So values at points exist in registers and shared memory only; derivatives compute them again.

Matrices A [P, K] to the points and B [K', P] back are small, read by all programs, and stay in the caches.  Products
of float32 are in the precision that PyTorch has for them on GPUs: full, or TF32 where that is allowed.  Coefficients
are padded with zeros to a power of two of at least 16.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from denskit.nn.fused.triton_common import launch

POINTS = tl.constexpr(16)  # at a time; with more, registers spill
TILE = 4096  # numbers of the coefficients of a program's columns, padding included


@triton.jit
def _coefficients(
    x: tl.tensor, num_columns: tl.tensor, C: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr
) -> tl.tuple:
    """Pointers to the coefficients [PADDED, N] of this program's columns in x [rows, SIZE, C], and their mask."""
    column = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    k = tl.arange(0, PADDED)[:, None]
    start = column // C * (SIZE * C) + column % C
    return x + start[None, :] + k * C, (k < SIZE) & (column < num_columns)[None, :]


@triton.jit
def _to_grid(to_grid: tl.tensor, first: int, K: tl.constexpr, KP: tl.constexpr, P: tl.constexpr) -> tl.tensor:
    """Rows of A for the points from ``first`` on, [POINTS, KP]."""
    point, k = first + tl.arange(0, POINTS)[:, None], tl.arange(0, KP)[None, :]
    return tl.load(to_grid + point * K + k, mask=(point < P) & (k < K), other=0.0)


@triton.jit
def _from_grid(from_grid: tl.tensor, first: int, K: tl.constexpr, KP: tl.constexpr, P: tl.constexpr) -> tl.tensor:
    """Columns of B for the points from ``first`` on, [KP, POINTS]."""
    k, point = tl.arange(0, KP)[:, None], first + tl.arange(0, POINTS)[None, :]
    return tl.load(from_grid + k * P + point, mask=(point < P) & (k < K), other=0.0)


@triton.jit
def _product(a: tl.tensor, b: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    return tl.dot(a, b, input_precision=PRECISION, out_dtype=b.dtype)


@triton.jit
def _sigmoid(x: tl.tensor) -> tl.tensor:
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _forward(
    to_grid: tl.tensor,
    from_grid: tl.tensor,
    x: tl.tensor,
    out: tl.tensor,
    num_columns: tl.tensor,
    C: tl.constexpr,
    P: tl.constexpr,
    K_IN: tl.constexpr,
    K_OUT: tl.constexpr,
    KP_IN: tl.constexpr,
    KP_OUT: tl.constexpr,
    N: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    at, mask = _coefficients(x, num_columns, C, K_IN, KP_IN, N)
    coefficients = tl.load(at, mask=mask, other=0.0)
    total = tl.zeros((KP_OUT, N), coefficients.dtype)
    for first in range(0, P, POINTS):
        values = _product(_to_grid(to_grid, first, K_IN, KP_IN, P), coefficients, PRECISION)
        total += _product(_from_grid(from_grid, first, K_OUT, KP_OUT, P), values * _sigmoid(values), PRECISION)
    at, mask = _coefficients(out, num_columns, C, K_OUT, KP_OUT, N)
    tl.store(at, total, mask=mask)


@triton.jit
def _backward(
    to_grid: tl.tensor,
    from_grid: tl.tensor,
    x: tl.tensor,
    grad: tl.tensor,
    grad_x: tl.tensor,
    num_columns: tl.tensor,
    C: tl.constexpr,
    P: tl.constexpr,
    K_IN: tl.constexpr,
    K_OUT: tl.constexpr,
    KP_IN: tl.constexpr,
    KP_OUT: tl.constexpr,
    N: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A^T (silu'(A x) u) with u = B^T grad."""
    at, mask = _coefficients(x, num_columns, C, K_IN, KP_IN, N)
    coefficients = tl.load(at, mask=mask, other=0.0)
    at_grad, mask_grad = _coefficients(grad, num_columns, C, K_OUT, KP_OUT, N)
    incoming = tl.load(at_grad, mask=mask_grad, other=0.0)
    total = tl.zeros((KP_IN, N), coefficients.dtype)
    for first in range(0, P, POINTS):
        a = _to_grid(to_grid, first, K_IN, KP_IN, P)
        values = _product(a, coefficients, PRECISION)
        u = _product(tl.trans(_from_grid(from_grid, first, K_OUT, KP_OUT, P)), incoming, PRECISION)
        s = _sigmoid(values)
        total += _product(tl.trans(a), u * s * (1 + values * (1 - s)), PRECISION)
    at, mask = _coefficients(grad_x, num_columns, C, K_IN, KP_IN, N)
    tl.store(at, total, mask=mask)


@triton.jit
def _double_backward(
    to_grid: tl.tensor,
    from_grid: tl.tensor,
    x: tl.tensor,
    grad: tl.tensor,
    h: tl.tensor,
    x_grad: tl.tensor,
    grad_grad: tl.tensor,
    num_columns: tl.tensor,
    C: tl.constexpr,
    P: tl.constexpr,
    K_IN: tl.constexpr,
    K_OUT: tl.constexpr,
    KP_IN: tl.constexpr,
    KP_OUT: tl.constexpr,
    N: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """With v = A h: of x A^T (silu''(A x) u v), of grad B (silu'(A x) v)."""
    at, mask = _coefficients(x, num_columns, C, K_IN, KP_IN, N)
    coefficients = tl.load(at, mask=mask, other=0.0)
    at_h, mask_h = _coefficients(h, num_columns, C, K_IN, KP_IN, N)
    cotangent = tl.load(at_h, mask=mask_h, other=0.0)
    at_grad, mask_grad = _coefficients(grad, num_columns, C, K_OUT, KP_OUT, N)
    incoming = tl.load(at_grad, mask=mask_grad, other=0.0)
    total_x = tl.zeros((KP_IN, N), coefficients.dtype)
    total_grad = tl.zeros((KP_OUT, N), coefficients.dtype)
    for first in range(0, P, POINTS):
        a = _to_grid(to_grid, first, K_IN, KP_IN, P)
        b = _from_grid(from_grid, first, K_OUT, KP_OUT, P)
        values = _product(a, coefficients, PRECISION)
        v = _product(a, cotangent, PRECISION)
        u = _product(tl.trans(b), incoming, PRECISION)
        s = _sigmoid(values)
        total_grad += _product(b, v * s * (1 + values * (1 - s)), PRECISION)
        total_x += _product(tl.trans(a), u * v * s * (1 - s) * (2 + values * (1 - 2 * s)), PRECISION)
    at, mask = _coefficients(x_grad, num_columns, C, K_IN, KP_IN, N)
    tl.store(at, total_x, mask=mask)
    at_grad, mask_grad = _coefficients(grad_grad, num_columns, C, K_OUT, KP_OUT, N)
    tl.store(at_grad, total_grad, mask=mask_grad)


def s2_forward(to_grid: Tensor, from_grid: Tensor, x: Tensor) -> Tensor:
    """B silu(A x): coefficients [N, K, C] to [N, K', C], for matrices [P, K] and [K', P]."""
    out = x.new_empty(len(x), len(from_grid), x.shape[2])
    _launch(_forward, TILE, to_grid, from_grid, x, out)
    return out


def s2_backward(to_grid: Tensor, from_grid: Tensor, x: Tensor, grad: Tensor) -> Tensor:
    """Gradient of x from that of the result."""
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    _launch(_backward, TILE, to_grid, from_grid, x, grad, grad_x)
    return grad_x


def s2_double_backward(to_grid: Tensor, from_grid: Tensor, x: Tensor, grad: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and grad from that (h) of what s2_backward returned."""
    x_grad, grad_grad = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, grad))
    _launch(_double_backward, TILE // 2, to_grid, from_grid, x, grad, h, x_grad, grad_grad)
    return x_grad, grad_grad


def _launch(kernel: Any, tile: int, to_grid: Tensor, from_grid: Tensor, x: Tensor, *tensors: Tensor) -> None:
    """Of ``tensors``, those that kernels write are contiguous already, and stay themselves."""
    (rows, k_in, channels), k_out = x.shape, len(from_grid)
    padded = [max(16, triton.next_power_of_2(k)) for k in (k_in, k_out)]
    columns = max(16, min(128, tile // max(padded)))
    launch(
        kernel,
        (triton.cdiv(rows * channels, columns),),
        *(t.contiguous() for t in (to_grid, from_grid, x, *tensors)),
        rows * channels,
        C=channels,
        P=len(to_grid),
        K_IN=k_in,
        K_OUT=k_out,
        KP_IN=padded[0],
        KP_OUT=padded[1],
        N=columns,
        PRECISION="tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee",
        num_warps=4,
    )
