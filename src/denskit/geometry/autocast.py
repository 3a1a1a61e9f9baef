"""Half precision in functions that autograd sees as one: autocast looks into torch's own operations only."""

from __future__ import annotations

import torch
from torch import Tensor


def product_dtype(like: Tensor) -> torch.dtype:
    """The dtype in which autocast would multiply matrices of ``like``; where it is off, their own."""
    kind = like.device.type
    if like.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return like.dtype
    return torch.get_autocast_dtype(kind)


def sum_dtype(like: Tensor) -> torch.dtype:
    """The dtype in which to sum over edges, atoms or chunks: float32 where ``like`` is in half precision."""
    return torch.promote_types(like.dtype, torch.float32)


def add_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to ``out``, which may be of higher precision."""
    if out.dtype == a.dtype:
        out.addmm_(a, b)
    else:
        out.add_(a @ b)
