"""Execution settings of a model: they change speed and memory, and results only by rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KernelName = Literal["auto", "plain", "fused"]


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Settings of :attr:`denskit.models.base.ForceField.execution`.

    kernels: of Equiformer's edge operations.  "plain": PyTorch; "fused": compiled kernels, on CPUs only; "auto": fused
        on CPUs, plain elsewhere; "for_compiler": elementwise operations left to a compiler.  Other models ignore this.
    edge_chunk: approximate edges per chunk; activations are recomputed for derivatives.  None: all edges at once.
    recompute: training keeps only the inputs of each block and recomputes its activations for derivatives.

    Raises ValueError for an edge_chunk below 1.
    """

    kernels: KernelName | Literal["for_compiler"] = "auto"
    edge_chunk: int | None = None
    recompute: bool = False

    def __post_init__(self) -> None:
        if self.edge_chunk is not None and self.edge_chunk < 1:
            raise ValueError(f"edge_chunk is {self.edge_chunk}; give at least 1, or None for all edges at once")


DEFAULT = Execution()
