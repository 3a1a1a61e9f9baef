"""Half precision in custom autograd functions, into which autocast does not look."""

from __future__ import annotations

import torch
from torch import Tensor


def product_dtype(like: Tensor) -> torch.dtype:
    """The dtype of matrix products of ``like`` under autocast; its own dtype where autocast is off."""
    kind = like.device.type
    if like.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return like.dtype
    return torch.get_autocast_dtype(kind)


def sum_dtype(like: Tensor) -> torch.dtype:
    """The dtype of sums over edges, atoms or chunks: at least float32."""
    return torch.promote_types(like.dtype, torch.float32)


def add_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to ``out``, which may have higher precision."""
    if out.dtype == a.dtype:
        out.addmm_(a, b)
    else:
        out.add_(a @ b)
