"""Operations as autocast, compilers and GPUs want them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode


def traced() -> bool:
    """Whether operations are traced, so that nothing may depend on values, nor loops on the number of rows."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def reordered(x: Tensor, dim: int, order: Sequence[int]) -> Tensor:
    """``x`` with its entries ``order`` along ``dim``, some of them or all.

    Indexing with a list would copy it to the GPU at every call, which waits for all that the GPU has to do before.
    """
    return x.index_select(dim, _index(tuple(order), x.device))


@cache
def _index(order: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # see edge_frame._coupling
        return torch.tensor(order, device=device)


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
