"""Products of functions on the sphere: two sets of coefficients to a grid of points, multiplied there, and back.

The product of two functions of degree L has degree 2L.  Its part up to L is read back exactly where the grid has more
than 3L latitudes and more than 3m longitudes for orders up to m.  Values at the points exist for a few rows at a time,
in the forward pass and, recomputed, in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from denskit.geometry.autocast import product_dtype
from denskit.nn.s2_activation import chunks


def s2_product(x: Tensor, to_grid: Tensor, from_grid: Tensor) -> Tensor:
    """Multiply, at each point, the first half of the channels with the second half.

    Args:
        x: [N, K, 2 C] coefficients.
        to_grid: [P, K], to P points.
        from_grid: [K', P], back to coefficients.

    Returns:
        [N, K', C], differentiable any number of times.
    """
    if torch.compiler.is_compiling():
        return _plain(x, to_grid, from_grid)
    dtype = product_dtype(x)
    with torch.autocast(x.device.type, enabled=False):
        return _ChunkedProduct.apply(x.to(dtype), to_grid.to(dtype), from_grid.to(dtype))  # type: ignore[no-any-return]


def _plain(x: Tensor, to_grid: Tensor, from_grid: Tensor) -> Tensor:
    first, second = (to_grid @ x).chunk(2, -1)
    return from_grid @ (first * second)


class _ChunkedProduct(torch.autograd.Function):
    """See :func:`s2_product`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, to_grid: Tensor, from_grid: Tensor) -> Tensor:
        ctx.save_for_backward(x, to_grid, from_grid)
        out = x.new_empty(len(x), len(from_grid), x.shape[2] // 2)
        for part in chunks(x, to_grid):
            first, second = (to_grid @ x[part]).chunk(2, -1)
            torch.matmul(from_grid, first * second, out=out[part])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, to_grid, from_grid = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is itself differentiated: autograd sees the operations
            values, grad_values = to_grid @ x, from_grid.T @ grad
            first, second = values.chunk(2, -1)
            return to_grid.T @ torch.cat((grad_values * second, grad_values * first), -1), None, None
        grad_x = torch.empty_like(x)
        for part in chunks(x, to_grid):
            values, grad_values = to_grid @ x[part], from_grid.T @ grad[part]
            first, second = values.chunk(2, -1)
            torch.matmul(to_grid.T, torch.cat((grad_values * second, grad_values * first), -1), out=grad_x[part])
        return grad_x, None, None
