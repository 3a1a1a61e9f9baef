"""What the CPU kernels share: compilation, arguments, and the loops over edges in parts.

Kernels work on flat arrays and say where each row begins (see numba_rows).  Lists of tensors arrive as arrays of their
addresses, so that one compiled kernel serves any number of degrees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

# reordering sums and fused multiply-add let loops over channels use vector instructions; NaN and inf stay what they are
FAST = {"contract", "reassoc", "nsz", "arcp"}
EDGES_PER_PART = 1024  # below this a second thread costs more than it gains

# without numba's reference counts (_nrt): kernels allocate nothing, and every array they touch is held by the caller
COMPILATION: dict[str, Any] = dict(
    fastmath=FAST, nogil=True, cache=True, error_model="numpy", boundscheck=False, _nrt=False
)
kernel = numba.njit(**COMPILATION)
inner = kernel


def call(function: Callable[..., None], first: int, last: int, arguments: Sequence[Any]) -> None:
    """Call a kernel: tensors become flat arrays, lists of tensors arrays of addresses."""
    held = [[x.contiguous() for x in a] if isinstance(a, list | tuple) else a for a in arguments]
    function(first, last, *(_argument(a) for a in held))


def _argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.contiguous().numpy().reshape(-1)
    if isinstance(value, list):
        return np.array([x.data_ptr() for x in value], np.uint64)
    return value


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="denskit-kernel")


def room(rows: int, size: int, like: Tensor) -> np.ndarray:
    """Rows of numbers in the precision of a tensor, for what a kernel needs in between."""
    return np.empty((rows, size), np.float32 if like.dtype == torch.float32 else np.float64)


def parts_of(edges: int) -> list[tuple[int, int]]:
    """Ranges of edges that one thread each works on: as many as torch has threads, if there are edges enough."""
    parts = max(1, min(torch.get_num_threads(), edges // EDGES_PER_PART))
    return list(pairwise(edges * k // parts for k in range(parts + 1)))


def run_parts(
    function: Callable[..., None], parts: Sequence[tuple[int, int]], arguments: Callable[[int], Sequence[Any]]
) -> None:
    """Call ``function(first, last, *arguments(part))`` for every part, on threads where there are several."""
    if len(parts) == 1:
        call(function, *parts[0], arguments(0))
        return
    futures = [_pool(len(parts)).submit(call, function, *part, arguments(k)) for k, part in enumerate(parts)]
    for future in futures:
        future.result()
