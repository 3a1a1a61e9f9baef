"""How a model computes its function; the function itself does not depend on it, but for rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KernelName = Literal["auto", "plain", "fused"]


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Settings of :attr:`denskit.models.base.ForceField.execution`.

    kernels: edge operations of Equiformer in plain PyTorch ("plain"), by fused kernels ("fused", on CPUs), or "auto":
        fused on CPUs, plain elsewhere; "for_compiler" leaves elementwise operations to a compiler.  Other models ignore
        this.
    edge_chunk: approximate edges per chunk; activations are recomputed for derivatives.  None: all edges at once.
    recompute: training keeps the inputs of each block only, and recomputes its activations for derivatives.

    Raises:
        ValueError: edge_chunk below 1.
    """

    kernels: KernelName | Literal["for_compiler"] = "auto"
    edge_chunk: int | None = None
    recompute: bool = False

    def __post_init__(self) -> None:
        if self.edge_chunk is not None and self.edge_chunk < 1:
            raise ValueError(f"edge_chunk is {self.edge_chunk}; give at least 1, or None for all edges at once")


DEFAULT = Execution()
