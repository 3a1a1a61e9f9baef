"""Sums over index sets in plain torch, under the name that fairchem-core 1.10.0 imports.

torch_scatter has no wheel for a current torch.  fairchem's EquiformerV2 uses it only while it builds its graph; its
layers add over edges with torch's own index_add.
"""

from __future__ import annotations

import torch
from torch import Tensor


def scatter(src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None, reduce: str = "sum") -> Tensor:
    """Reduce ``src`` along ``dim`` into the places ``index`` [len of dim]."""
    size = int(index.max()) + 1 if dim_size is None else dim_size
    index = index.expand_as(src) if index.dim() == src.dim() else index.reshape([-1] + [1] * (src.dim() - 1))
    shape = list(src.shape)
    shape[dim] = size
    kind = {"sum": "sum", "add": "sum", "mean": "mean", "min": "amin", "max": "amax"}[reduce]
    return src.new_zeros(shape).scatter_reduce(dim, index.expand_as(src), src, kind, include_self=False)


def segment_coo(src: Tensor, index: Tensor, dim_size: int | None = None, reduce: str = "sum") -> Tensor:
    """Reduce ``src`` over sorted segments of its first axis."""
    return scatter(src, index, dim=0, dim_size=dim_size, reduce=reduce)


def segment_csr(src: Tensor, indptr: Tensor, reduce: str = "sum") -> Tensor:
    """Reduce ``src`` between the places of ``indptr`` along its first axis."""
    counts = indptr.diff()
    index = torch.repeat_interleave(torch.arange(len(counts), device=src.device), counts)
    return scatter(src, index, dim=0, dim_size=len(counts), reduce=reduce)
