"""Edge operations of Equiformer: plain PyTorch as the reference, and hand-written kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal

import torch
from torch import Tensor

from denskit.models.equiformer.kernels import functions, reference
from denskit.models.execution import KernelName


@dataclass(frozen=True)
class EdgeOperations:
    """The three operations; signatures as in :mod:`denskit.models.equiformer.kernels.reference`."""

    couple: Callable[..., list[Tensor]]
    gate: Callable[..., tuple[list[Tensor], Tensor]]
    aggregate: Callable[..., list[Tensor]]


KERNELS: dict[str, EdgeOperations] = {
    "plain": EdgeOperations(reference.couple, reference.gate, reference.aggregate),
    "fused": EdgeOperations(functions.couple, functions.gate, functions.aggregate),
    # a compiler fuses the elementwise operations of the gate
    "for_compiler": EdgeOperations(functions.couple, reference.gate, functions.aggregate),
}


def choose_kernels(
    name: KernelName | Literal["for_compiler"], device: torch.device
) -> Literal["plain", "fused", "for_compiler"]:
    """The kernels for a device, a name of KERNELS; "auto": fused on CPUs.

    Raises ValueError for "fused" on a device without fused kernels, or where numba cannot be imported.
    """
    problem = None if name == "plain" else fused_problem(device.type)
    if name == "fused" and problem is not None:
        raise ValueError(f"kernels=fused: {problem}; take kernels=auto, which then means plain PyTorch")
    if problem is not None:
        return "plain"
    return "fused" if name == "auto" else name


@cache
def fused_problem(device_type: str) -> str | None:
    """Why a device type ("cpu", "cuda") has no fused kernels; None if it has."""
    if device_type != "cpu":
        return f"there are no fused kernels for {device_type}"
    try:
        import_module("denskit.models.equiformer.kernels.numba_couple")
    except Exception as error:  # a damaged installation raises any exception
        return f"numba cannot be imported ({type(error).__name__}: {error})"
    return None
