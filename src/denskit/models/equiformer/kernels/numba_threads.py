"""Calls of CPU kernels: addresses of tensors, and division of the edges among threads.

A molecule's step makes dozens of these calls, and Python around a kernel takes longer than the kernel on its 70 edges.
So a kernel gets one array with the addresses of all its tensors, whatever their number, and clears its sums itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from denskit.models.equiformer.kernels.plan import Tensors

EDGES_PER_PART = 1024  # below this a second thread costs more than it gains


class Layout(NamedTuple):
    """Arguments that all calls of a kernel share, computed once for a plan and a precision."""

    tables: tuple[Any, ...]  # arrays and numbers
    shapes: tuple[tuple[int, ...], ...]  # of the outputs of the forward kernel, without their first dimension
    room: tuple[int, int]  # rows and length of the buffers of one edge
    number: type  # np.float32 or np.float64


def number_of(dtype: torch.dtype) -> type:
    """The precision of a kernel."""
    return np.float32 if dtype == torch.float32 else np.float64


def unwritten(like: Tensors) -> list[Tensor]:
    """Contiguous memory for tensors of these shapes; half the time of ``new_empty``."""
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in like]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="denskit-kernel")


def parts_of(edges: int) -> list[tuple[int, int]]:
    """Ranges of edges, one per thread: as many as torch has threads, if there are enough edges."""
    parts = min(torch.get_num_threads(), edges // EDGES_PER_PART)
    return list(pairwise(edges * k // parts for k in range(parts + 1))) if parts > 1 else [(0, edges)]


def run(
    function: Callable[..., None],
    layout: Layout,
    edges: int,
    tensors: Tensors,
    numbers: tuple[int, ...] = (),
    sums: Tensors = (),
) -> None:
    """Call ``function(first, last, addresses, *numbers, *tables, room)`` for all edges, on threads where it pays.

    Addresses are those of ``tensors``, which threads share, each writing to the rows of its own edges, and of ``sums``
    at atoms, which are not initialised: each thread has its own, and they are added in a fixed order.  Outputs must be
    contiguous.
    """
    held = [x if x.is_contiguous() else x.contiguous() for x in tensors]
    shared = [x.data_ptr() for x in held]
    parts = parts_of(edges)
    others = [unwritten(sums) for _ in parts[1:]]
    calls = []
    for (first, last), own in zip(parts, (sums, *others), strict=True):
        addresses = np.array([*shared, *(x.data_ptr() for x in own)], np.uint64)
        room: np.ndarray = np.empty(layout.room, layout.number)
        calls.append(((*held, *own), function, (first, last, addresses, *numbers, *layout.tables, room)))
    futures = [_pool(len(parts) - 1).submit(_call, *call) for call in calls[1:]]
    _call(*calls[0])
    for future, own in zip(futures, others, strict=True):
        future.result()
        for whole, more in zip(sums, own, strict=True):
            whole += more


def _call(_held: Tensors, function: Callable[..., None], arguments: Sequence[Any]) -> None:
    """Call a kernel.  ``_held`` keeps its memory alive, also when the caller is interrupted."""
    function(*arguments)
