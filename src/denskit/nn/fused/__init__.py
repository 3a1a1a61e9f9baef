"""Edge operations of Equiformer: plain PyTorch as the reference, and beside it hand-written kernels of the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from denskit.nn.fused import functions, reference

KernelName = Literal["auto", "plain", "fused"]


@dataclass(frozen=True)
class Kernels:
    """One way to compute the three operations; signatures as in :mod:`denskit.nn.fused.reference`."""

    couple: Callable[..., list[Tensor]]
    gate: Callable[..., tuple[list[Tensor], Tensor]]
    aggregate: Callable[..., list[Tensor]]


KERNELS: dict[str, Kernels] = {
    "plain": Kernels(reference.couple, reference.gate, reference.aggregate),
    "fused": Kernels(functions.couple, functions.gate, functions.aggregate),
    # a compiler joins elementwise operations to its own
    "for_compiler": Kernels(functions.couple, reference.gate, functions.aggregate),
}


def choose_kernels(name: KernelName, device: torch.device) -> Literal["plain", "fused"]:
    """The kernels to use on a device; "auto": fused ones on CPUs.

    Raises:
        ValueError: Fused kernels asked for on a device that has none, or without the library they need.
    """
    if name == "plain":
        return "plain"
    if fused_available(device):
        return "fused"
    if name == "auto":
        return "plain"
    hint = "install numba: pip install 'denskit[fast]'" if device.type == "cpu" else "use kernels=plain"
    raise ValueError(f"kernels=fused: there are none for {device.type} here; {hint}")


def fused_available(device: torch.device) -> bool:
    """Whether there are fused kernels for a device."""
    return device.type == "cpu" and find_spec("numba") is not None
