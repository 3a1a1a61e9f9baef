"""Edge operations of Equiformer: plain PyTorch as the reference, and beside it hand-written kernels of the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from denskit.nn.fused import functions, reference

KernelName = Literal["plain", "fused"]
NEEDED = {"cpu": "numba", "cuda": "triton"}  # what the fused kernels of a device are written in


@dataclass(frozen=True)
class Kernels:
    """One way to compute the three operations; signatures as in :mod:`denskit.nn.fused.reference`."""

    couple: Callable[..., list[Tensor]]
    gate: Callable[..., tuple[list[Tensor], Tensor]]
    aggregate: Callable[..., list[Tensor]]


KERNELS: dict[KernelName, Kernels] = {
    "plain": Kernels(reference.couple, reference.gate, reference.aggregate),
    "fused": Kernels(functions.couple, functions.gate, functions.aggregate),
}


def fused_available(device: torch.device) -> bool:
    """Whether there are fused kernels for a device."""
    needed = NEEDED.get(device.type)
    return needed is not None and find_spec(needed) is not None
