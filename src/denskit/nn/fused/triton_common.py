"""What the Triton kernels of Equiformer's edge operations share.

Kernels know their plan while they are compiled: channels, offsets and coefficients are in nested tuples of numbers, and
all loops over them unroll.  They want float32 or float64 tensors of one dtype, on a CUDA device, or on the CPU under
Triton's interpreter (``TRITON_INTERPRET=1`` before the first import).  Sums at atoms are atomic additions, whose order
and so whose last digits change from run to run, unless ``torch.use_deterministic_algorithms(True)`` asks otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

Grid = tuple[int, ...]


@triton.constexpr_function
def pick(table: Any, *indices: int) -> Any:
    """An element of a nested tuple, at compile time."""
    for index in indices:
        table = table[index]
    return table


@triton.constexpr_function
def count(table: Any, *indices: int) -> int:
    """Length of an element of a nested tuple, at compile time."""
    for index in indices:
        table = table[index]
    return len(table)


@triton.jit
def load_rows(start: tl.tensor, c: tl.tensor, mask: tl.tensor, ROWS: tl.constexpr, C: tl.constexpr) -> tl.tuple:
    """Consecutive rows of C channels."""
    rows: tl.tuple = ()
    for i in tl.static_range(ROWS):
        rows += (tl.load(start + i * C + c, mask=mask, other=0.0),)
    return rows


@triton.jit
def add_rows_at(start: tl.tensor, rows: tl.tuple, c: tl.tensor, mask: tl.tensor, C: tl.constexpr) -> None:
    """Atomic addition to consecutive rows of C channels; no other memory access waits for it."""
    for i in tl.static_range(len(rows)):
        tl.atomic_add(start + i * C + c, rows[i], mask=mask, sem="relaxed")


@triton.jit
def zeros_like_rows(like: tl.tensor, ROWS: tl.constexpr) -> tl.tuple:
    """Rows of zeros."""
    rows: tl.tuple = ()
    for _ in tl.static_range(ROWS):
        rows += (tl.zeros_like(like),)
    return rows


@triton.jit
def plus(a: tl.tuple, b: tl.tuple) -> tl.tuple:
    """Sum of two tuples, element by element."""
    rows: tl.tuple = ()
    for i in tl.static_range(len(a)):
        rows += (a[i] + b[i],)
    return rows


@triton.jit
def plus_at(rows: tl.tuple, i: tl.constexpr, x: tl.tensor) -> tl.tuple:
    """The tuple with x added to its element i."""
    changed: tl.tuple = ()
    for k in tl.static_range(len(rows)):
        if k == i:
            changed += (rows[k] + x,)
        else:
            changed += (rows[k],)
    return changed


@triton.jit
def turned(matrix: tl.tensor, z: tl.tuple, ROWS: tl.constexpr) -> tl.tuple:
    """The first rows of D z; D is row by row at ``matrix`` (every thread reads the same number: one transaction).

    For degree 0, D is 1 and is not read.
    """
    rows: tl.tuple = ()
    if len(z) == 1:
        rows = z
    else:
        for i in tl.static_range(ROWS):
            row = tl.load(matrix + i * len(z)) * z[0]
            for j in tl.static_range(1, len(z)):
                row += tl.load(matrix + i * len(z) + j) * z[j]
            rows += (row,)
    return rows


@triton.jit
def turned_back(matrix: tl.tensor, r: tl.tuple, DIM: tl.constexpr) -> tl.tuple:
    """D^T r, where rows of r beyond those given are zero."""
    rows: tl.tuple = ()
    if DIM == 1:
        rows = r
    else:
        for j in tl.static_range(DIM):
            row = tl.load(matrix + j) * r[0]
            for i in tl.static_range(1, len(r)):
                row += tl.load(matrix + i * DIM + j) * r[i]
            rows += (row,)
    return rows


@triton.jit
def store_outer(matrix: tl.tensor, r: tl.tuple, z: tl.tuple) -> None:
    """Write r z^T summed over channels, row by row; channels beyond the mask must be zero in r or z."""
    if len(z) > 1:
        for i in tl.static_range(len(r)):
            for j in tl.static_range(len(z)):
                tl.store(matrix + i * len(z) + j, tl.sum(r[i] * z[j], axis=0))


@triton.jit
def store_outers(matrix: tl.tensor, p: tl.tuple, z: tl.tuple, q: tl.tuple, y: tl.tuple) -> None:
    """Write p z^T + q y^T summed over channels, row by row."""
    if len(z) > 1:
        for i in tl.static_range(len(p)):
            for j in tl.static_range(len(z)):
                tl.store(matrix + i * len(z) + j, tl.sum(p[i] * z[j] + q[i] * y[j], axis=0))


def rows_used(l: int, m_max: int) -> int:
    """Rows of degree l in the edge frame, orders up to m_max."""
    return 2 * min(l, m_max) + 1


def warps(channels: Sequence[int]) -> int:
    """One for 256 channels: 8 numbers of a row for each thread leave registers for all rows of degree 3."""
    return min(max(int(triton.next_power_of_2(max(channels))) // 256, 1), 8)


def contiguous(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Tensors as kernels read them."""
    return tuple(tensor.contiguous() for tensor in tensors)


def launch(kernel: Any, grid: Grid, *arguments: Any, **constants: Any) -> None:
    """Run a kernel on the device of its tensors; nothing to do is no launch, which CUDA would refuse."""
    if 0 in grid:
        return
    tensors = [t for a in arguments for t in (a if isinstance(a, tuple) else (a,)) if isinstance(t, Tensor)]
    first = tensors[0]
    if isinstance(kernel, triton.runtime.JITFunction) and not first.is_cuda:
        raise ValueError(
            f"Triton kernels run on CUDA devices, these tensors are on {first.device}: "
            "move them, use the plain operations, or set TRITON_INTERPRET=1 before importing to debug the kernels"
        )
    wrong = {t.dtype for t in tensors} - {torch.int64, first.dtype}
    if wrong or first.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"kernels want tensors all float32 or all float64, got {first.dtype} and {sorted(map(str, wrong))}"
        )
    with torch.cuda.device_of(first):
        kernel[grid](*arguments, **constants, enable_fp_fusion=True)  # the default of Triton up to 3.9


def empty_wigner_grad(wigner: Sequence[Tensor], m_max: int, degrees: Sequence[int] | None = None) -> tuple[Tensor, ...]:
    """Memory for gradients of Wigner matrices, zero where kernels write nothing.

    They write the rows of orders up to m_max of all degrees above 0, or of those given.
    """
    written = range(1, min(m_max, len(wigner) - 1) + 1)  # whole matrices
    return tuple(
        torch.empty_like(matrix, memory_format=torch.contiguous_format)
        if l in written and (degrees is None or l in degrees)
        else torch.zeros_like(matrix, memory_format=torch.contiguous_format)
        for l, matrix in enumerate(wigner)
    )


class AtomSums:
    """Where a kernel adds up what edges give to atoms.

    It adds at atoms, atomically; or, where deterministic algorithms are wanted, in a row of its own for every edge, and
    index_add sums these.

    Args:
        place: [E], the atom of each edge.
        shapes: (N, 2l+1, C) of every sum.
        like: a tensor with the dtype and the device of the sums.
    """

    def __init__(self, place: Tensor, shapes: Sequence[tuple[int, ...]], like: Tensor) -> None:
        self.place, self.num_atoms = place, shapes[0][0]
        self.by_edge = torch.are_deterministic_algorithms_enabled()
        self.rows = torch.arange(len(place), device=place.device) if self.by_edge else place.contiguous()
        length = len(place) if self.by_edge else self.num_atoms
        self.buffers = tuple(like.new_zeros(length, *shape[1:]) for shape in shapes)

    def result(self) -> list[Tensor]:
        """The sums [N, 2l+1, C]."""
        if not self.by_edge:
            return list(self.buffers)
        return [x.new_zeros(self.num_atoms, *x.shape[1:]).index_add(0, self.place, x) for x in self.buffers]
