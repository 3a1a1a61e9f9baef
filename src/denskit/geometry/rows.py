"""Rows in an order that is known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor


def reordered(x: Tensor, dim: int, order: Sequence[int]) -> Tensor:
    """``x`` with its entries ``order`` along ``dim``, some of them or all.

    Indexing with a list would copy it to the GPU at every call, which waits for all that the GPU has to do before.
    """
    return x.index_select(dim, _index(tuple(order), x.device))


@cache
def _index(order: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # see edge_frame._coupling
        return torch.tensor(order, device=device)
