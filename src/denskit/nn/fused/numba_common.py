"""What the CPU kernels share: compilation, tables, and the loops over edges in parts."""

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

kernel = numba.njit(fastmath=FAST, nogil=True, cache=True, error_model="numpy", boundscheck=False, _nrt=False)
inner = numba.njit(fastmath=FAST, nogil=True, cache=True, error_model="numpy", boundscheck=False, _nrt=False)


def arrays(tensors: Sequence[Tensor]) -> tuple[np.ndarray, ...]:
    """Contiguous numpy views."""
    return tuple(tensor.contiguous().numpy() for tensor in tensors)


def array(tensor: Tensor) -> np.ndarray:
    """A contiguous numpy view."""
    return tensor.contiguous().numpy()  # type: ignore[no-any-return]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="denskit-kernel")


def parts_of(edges: int) -> list[tuple[int, int]]:
    """Ranges of edges that one thread each works on: as many as torch has threads, if there are edges enough."""
    parts = max(1, min(torch.get_num_threads(), edges // EDGES_PER_PART))
    bounds = [edges * k // parts for k in range(parts + 1)]
    return list(pairwise(bounds))


def run_parts(
    function: Callable[..., None], parts: Sequence[tuple[int, int]], arguments: Callable[[int], tuple[Any, ...]]
) -> None:
    """Call ``function(first, last, *arguments(part))`` for every part, on threads where there are several."""
    if len(parts) == 1:
        function(*parts[0], *arguments(0))
        return
    futures = [_pool(len(parts)).submit(function, *part, *arguments(k)) for k, part in enumerate(parts)]
    for future in futures:
        future.result()
