"""What the CPU kernels share: compilation, arithmetic on short rows, and the loops over edges in parts.

Kernels work on flat arrays and say where each row begins: slices would cost more than the short rows they hold, and an
unsigned place needs no test for negative numbers.  Lists of tensors arrive as arrays of their addresses, so that one
compiled kernel serves any number of degrees.
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
from numba.core import types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array
from torch import Tensor

# reordering sums and fused multiply-add let loops over channels use vector instructions; NaN and inf stay what they are
FAST = {"contract", "reassoc", "nsz", "arcp"}
EDGES_PER_PART = 1024  # below this a second thread costs more than it gains
HUGE = 1 << 60  # the length that arrays made of addresses claim: kernels know where they end

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
        return value.contiguous().view(-1).numpy()
    if isinstance(value, list):
        return np.array([x.data_ptr() for x in value], np.uint64)
    return value


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="denskit-kernel")


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


# --- inside kernels --------------------------------------------------------------------------------------------------


@intrinsic
def at(typing: Any, address: Any, like: Any) -> Any:
    """The flat array at an address, with numbers as in the array ``like``."""
    assert isinstance(address, types.Integer)
    array = types.Array(like.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = context.get_data_type(like.dtype)
        size = context.get_constant(types.intp, context.get_abi_sizeof(number))
        made = context.make_array(array)(context, builder)
        data = builder.inttoptr(arguments[0], number.as_pointer())
        length = context.get_constant(types.intp, HUGE)
        populate_array(made, data=data, shape=[length], strides=[size], itemsize=size, meminfo=None)
        return made._getvalue()

    return array(address, like), generate


@inner
def add(out, o, x, i, n):
    """out[o:] += x[i:], n numbers."""
    o, i = np.uint64(o), np.uint64(i)
    for c in range(np.uint64(n)):
        out[o + c] += x[i + c]


@inner
def add_scaled(out, o, a, x, i, n):
    """out[o:] += a x[i:], n numbers."""
    o, i = np.uint64(o), np.uint64(i)
    for c in range(np.uint64(n)):
        out[o + c] += a * x[i + c]


@inner
def scaled(out, o, a, x, i, n):
    """out[o:] = a x[i:], n numbers."""
    o, i = np.uint64(o), np.uint64(i)
    for c in range(np.uint64(n)):
        out[o + c] = a * x[i + c]


@inner
def product(out, o, a, x, i, y, j, n):
    """out[o:] = a x[i:] y[j:], n numbers."""
    o, i, j = np.uint64(o), np.uint64(i), np.uint64(j)
    for c in range(np.uint64(n)):
        out[o + c] = a * x[i + c] * y[j + c]


@inner
def add_product(out, o, a, x, i, y, j, n):
    """out[o:] += a x[i:] y[j:], n numbers."""
    o, i, j = np.uint64(o), np.uint64(i), np.uint64(j)
    for c in range(np.uint64(n)):
        out[o + c] += a * x[i + c] * y[j + c]


@inner
def dot(x, i, y, j, n):
    """x[i:] . y[j:], n > 0 numbers."""
    i, j = np.uint64(i), np.uint64(j)
    total = x[i] * y[j]
    for c in range(np.uint64(1), np.uint64(n)):
        total += x[i + c] * y[j + c]
    return total


@inner
def zero(out, o, n):
    """out[o:] = 0, n numbers."""
    o = np.uint64(o)
    for c in range(np.uint64(n)):
        out[o + c] = 0
