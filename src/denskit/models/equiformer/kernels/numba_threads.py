"""Calls of CPU kernels: conversion of arguments, and division of the edges among threads.

Kernels work on flat arrays and places in them (see numba_rows).  Lists of tensors are passed as arrays of addresses, so
that one compiled kernel serves any number of degrees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

EDGES_PER_PART = 1024  # below this a second thread costs more than it gains


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="denskit-kernel")


def room(rows: int, size: int, like: Tensor) -> np.ndarray:
    """Buffer rows of a kernel, in the precision of a tensor."""
    return np.empty((rows, size), np.float32 if like.dtype == torch.float32 else np.float64)


def parts_of(edges: int) -> list[tuple[int, int]]:
    """Ranges of edges, one per thread: as many as torch has threads, if there are enough edges."""
    parts = max(1, min(torch.get_num_threads(), edges // EDGES_PER_PART))
    return list(pairwise(edges * k // parts for k in range(parts + 1)))


def run_parts(
    function: Callable[..., None], parts: Sequence[tuple[int, int]], shared: Sequence[Any], own: Sequence[Sequence[Any]]
) -> None:
    """Call ``function(first, last, *shared, *own[part])`` for every part, on threads where there are several.

    Tensors become flat arrays, lists of tensors arrays of addresses; outputs must be contiguous.  Tensors are converted
    on the caller's thread, because other threads do not share its autograd mode.
    """
    held, arrays = _arrays(shared)
    calls = []
    for part, more in zip(parts, own, strict=True):
        more_held, more_arrays = _arrays(more)
        calls.append(((*held, *more_held), function, (*part, *arrays, *more_arrays)))
    futures = [_pool(len(parts) - 1).submit(_call, *call) for call in calls[1:]]
    _call(*calls[0])
    for future in futures:
        future.result()


def _call(_held: Sequence[Any], function: Callable[..., None], arguments: Sequence[Any]) -> None:
    """Call a kernel.  ``_held`` keeps its memory alive, also when the caller is interrupted."""
    function(*arguments)


def _arrays(values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The tensors that own the memory, and the arguments of a kernel."""
    held = [[x.detach().contiguous() for x in v] if isinstance(v, list | tuple) else v for v in values]
    return held, [_array(v) for v in held]


def _array(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().contiguous().numpy().reshape(-1)
    if isinstance(value, list):
        return np.array([x.data_ptr() for x in value], np.uint64)
    return value


def new_sums(like: Sequence[Tensor], parts: Sequence[object]) -> list[list[Tensor]]:
    """Zeros for sums at atoms, for each part of the edges: threads do not share them."""
    return [[x.new_zeros(x.shape) for x in like] for _ in parts]


def sum_of_parts(sums: Sequence[list[Tensor]]) -> list[Tensor]:
    """Sums over all parts, in a fixed order."""
    first, *others = sums
    for other in others:
        for whole, more in zip(first, other, strict=True):
            whole += more
    return first
