"""Pointwise nonlinearities of functions on the sphere, evaluated on a grid.

The values on the grid need more memory than the rest of a model.  They exist for a few rows at a time: the forward pass
works in chunks and the backward pass recomputes them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from denskit.geometry.grid import Normalisation, s2_grid
from denskit.geometry.operations import add_product, product_dtype, sum_dtype, traced
from denskit.geometry.order_major import order_major

VALUES = {"cpu": 2**18, "cuda": 2**26}  # per chunk: fits the caches of a CPU, the memory of a GPU


@cache
def cast_grid(
    l_max: int,
    m_max: int,
    resolution: tuple[int, int],
    normalisation: Normalisation,
    by_order: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Matrices from K coefficients to P points [P, K] and back [K, P].

    ``by_order``: coefficients in the rows of :func:`denskit.geometry.order_major.order_major`, else l first.
    """
    with torch.inference_mode(False), torch.no_grad():
        both = s2_grid(l_max, m_max, resolution, normalisation)
        to_grid, from_grid = (matrix.flatten(0, 1) for matrix in both)
        if by_order:
            columns = [position for _, _, position in order_major(l_max, m_max)]
            to_grid, from_grid = to_grid[:, columns], from_grid[:, columns]
        return to_grid.contiguous().to(device, dtype), from_grid.T.contiguous().to(device, dtype)


def s2_silu(x: Tensor, to_grid: Tensor, from_grid: Tensor, weight: Tensor | None = None) -> Tensor:
    """SiLU, or SiLU, linear, SiLU, of functions on the sphere, differentiable any number of times.

    From coefficients [N, K, C] by ``to_grid`` [P, K] to P points, and by ``from_grid`` [K', P] back to [N, K', C].  The
    linear layer of ``weight`` [C, C] mixes channels at each point; None: one SiLU.
    """
    if traced():
        return _plain(x, weight, to_grid, from_grid)
    dtype = product_dtype(x)
    inputs = (None if tensor is None else tensor.to(dtype) for tensor in (x, weight, to_grid, from_grid))
    with torch.autocast(x.device.type, enabled=False):
        return _ChunkedSiLU.apply(*inputs)  # type: ignore[no-any-return]


def _plain(x: Tensor, weight: Tensor | None, to_grid: Tensor, from_grid: Tensor) -> Tensor:
    values = F.silu(to_grid @ x)
    return from_grid @ (values if weight is None else F.silu(values @ weight.T))


class _ChunkedSiLU(torch.autograd.Function):
    """See :func:`s2_silu`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, to_grid: Tensor, from_grid: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, to_grid, from_grid)
        out = x.new_empty(len(x), len(from_grid), x.shape[2])
        for part in chunks(x, to_grid):
            values = F.silu(to_grid @ x[part], inplace=True)
            if weight is not None:
                values = F.silu(values @ weight.T, inplace=True)
            torch.matmul(from_grid, values, out=out[part])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, to_grid, from_grid = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient will be differentiated: plain operations for autograd
            inputs = [x] if weight is None else [x, weight]
            grads = torch.autograd.grad(_plain(x, weight, to_grid, from_grid), inputs, grad, create_graph=True)
            return (*grads, *(None,) * (4 - len(grads)))
        grad_x = torch.empty_like(x)
        grad_weight = None if weight is None else torch.zeros_like(weight, dtype=sum_dtype(x))
        for part in chunks(x, to_grid):
            first = to_grid @ x[part]
            grad_values = from_grid.T @ grad[part]
            if weight is not None and grad_weight is not None:
                activated = F.silu(first)
                grad_second = torch.ops.aten.silu_backward(grad_values, activated @ weight.T)
                add_product(grad_weight, grad_second.flatten(0, 1).T, activated.flatten(0, 1))
                grad_values = grad_second @ weight
            torch.matmul(to_grid.T, torch.ops.aten.silu_backward(grad_values, first), out=grad_x[part])
        return grad_x, grad_weight, None, None


def chunks(x: Tensor, to_grid: Tensor) -> list[slice]:
    """Slices of rows with at most VALUES values on the grid."""
    values = VALUES.get(x.device.type, VALUES["cuda"])
    size = max(1, values // (len(to_grid) * x.shape[2]))
    return [slice(start, start + size) for start in range(0, len(x), size)]
