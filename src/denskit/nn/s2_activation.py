"""Pointwise functions of functions on the sphere: to a grid, through the function there, and back."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from denskit.geometry.grid import Normalisation, s2_grid
from denskit.geometry.so2_linear import order_major


@cache
def grid_matrices(
    l_max: int, m_max: int, resolution: tuple[int, int], normalisation: Normalisation, by_order: bool
) -> tuple[Tensor, Tensor]:
    """Matrices to the grid [P, K] and back [K, P] (float64), P points; coefficients l first, or by order.

    By order means the rows of :func:`denskit.geometry.so2_linear.order_major`.
    """
    with torch.inference_mode(False), torch.no_grad():
        to_grid, from_grid = (matrix.flatten(0, 1) for matrix in s2_grid(l_max, m_max, resolution, normalisation))
        if by_order:
            columns = [position for _, _, position in order_major(l_max, m_max)]
            to_grid, from_grid = to_grid[:, columns], from_grid[:, columns]
        return to_grid.contiguous(), from_grid.T.contiguous()


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
    """:func:`grid_matrices` in the precision and at the place where they are used."""
    with torch.inference_mode(False), torch.no_grad():
        to_grid, from_grid = grid_matrices(l_max, m_max, resolution, normalisation, by_order)
        return to_grid.to(device, dtype), from_grid.to(device, dtype)


def s2_silu(x: Tensor, to_grid: Tensor, from_grid: Tensor) -> Tensor:
    """SiLU of functions on the sphere: coefficients [N, K, C] to [N, K, C]."""
    return from_grid @ F.silu(to_grid @ x)
