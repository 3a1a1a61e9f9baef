"""Symmetric matrices as features of degrees 0 and 2, and back."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from denskit.geometry.wigner_3j import wigner_3j


def matrices_of(coefficients: Tensor) -> Tensor:
    """Symmetric matrices [B, 3, 3] of coefficients [B, 6], degree 0 first, then degree 2 (m = -2..2)."""
    return torch.einsum("ijk,bk->bij", _basis(coefficients.device, coefficients.dtype), coefficients)


def coefficients_of(matrices: Tensor) -> Tensor:
    """The inverse of :func:`matrices_of`; it drops the antisymmetric part.  The Frobenius norm is the Euclidean one."""
    return torch.einsum("ijk,bij->bk", _basis(matrices.device, matrices.dtype), matrices)


@cache
def _basis(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Six orthonormal matrices [3, 3, 6]."""
    with torch.inference_mode(False):  # see edge_frame._coupling
        return torch.cat([(2 * l + 1) ** 0.5 * wigner_3j(1, 1, l) for l in (0, 2)], -1).to(device, dtype)
