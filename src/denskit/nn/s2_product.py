"""Products of functions on the sphere: two sets of coefficients to a grid of points, multiplied there, and back.

The product of two functions of degree L has degree 2L.  Its part up to L is read back exactly where the grid has more
than 3L latitudes and more than 3m longitudes for orders up to m.  Values at the points exist for a few rows at a time,
in the forward pass and, recomputed, in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from denskit.geometry.operations import product_dtype, traced
from denskit.nn.s2_activation import chunks


def s2_product(x: Tensor, to_grid: Tensor, from_grid: Tensor) -> Tensor:
    """Multiply, at each point, the first half of the channels with the second half.

    From coefficients [N, K, 2 C] by ``to_grid`` [P, K] to P points, and by ``from_grid`` [K', P] back to [N, K', C],
    differentiable any number of times.
    """
    if traced():
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
        return _ChunkedGradient.apply(grad, *ctx.saved_tensors), None, None


class _ChunkedGradient(torch.autograd.Function):
    """Gradient [N, K, 2 C] of the product in x, given the gradient [N, K', C] of its result; differentiable itself."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, x: Tensor, to_grid: Tensor, from_grid: Tensor) -> Tensor:
        ctx.save_for_backward(grad, x, to_grid, from_grid)
        out = torch.empty_like(x)
        for part in chunks(x, to_grid):
            torch.matmul(to_grid.T, _crossed(to_grid @ x[part], from_grid.T @ grad[part]), out=out[part])
        return out

    @staticmethod
    def backward(ctx: Any, other: Tensor) -> tuple[Tensor | None, ...]:
        """``other`` [N, K, 2 C]: the gradient of the gradient."""
        grad, x, to_grid, from_grid = ctx.saved_tensors
        if torch.is_grad_enabled():  # a third derivative is wanted: autograd sees the operations
            values, others, grads = to_grid @ x, to_grid @ other, from_grid.T @ grad
            return from_grid @ _mixed(values, others), to_grid.T @ _crossed(others, grads), None, None
        of_grad, of_x = torch.empty_like(grad), torch.empty_like(x)
        for part in chunks(x, to_grid):
            values, others, grads = to_grid @ x[part], to_grid @ other[part], from_grid.T @ grad[part]
            torch.matmul(from_grid, _mixed(values, others), out=of_grad[part])
            torch.matmul(to_grid.T, _crossed(others, grads), out=of_x[part])
        return of_grad, of_x, None, None


def _crossed(values: Tensor, grad: Tensor) -> Tensor:
    """Gradient of a product of two halves [n, P, 2 C] in both: each half is the factor of the other."""
    return (values.unflatten(-1, (2, -1)).flip(-2) * grad.unsqueeze(-2)).flatten(-2)


def _mixed(values: Tensor, others: Tensor) -> Tensor:
    """The change of a product of two halves [n, P, 2 C] with a change of both: [n, P, C]."""
    (first, second), (other_first, other_second) = values.chunk(2, -1), others.chunk(2, -1)
    return torch.addcmul(first * other_second, second, other_first)
