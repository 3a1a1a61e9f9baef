"""Edge operations of Equiformer: plain PyTorch as the reference, and beside it hand-written kernels of the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from denskit.nn.fused import reference

KernelName = Literal["plain"]


@dataclass(frozen=True)
class Kernels:
    """One way to compute the three operations; signatures as in :mod:`denskit.nn.fused.reference`."""

    couple: Callable[..., list[Tensor]]
    gate: Callable[..., tuple[list[Tensor], Tensor]]
    aggregate: Callable[..., list[Tensor]]


KERNELS: dict[str, Kernels] = {"plain": Kernels(reference.couple, reference.gate, reference.aggregate)}
