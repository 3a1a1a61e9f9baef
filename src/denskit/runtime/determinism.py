"""Results that repeat themselves to the bit on a GPU, too."""

from __future__ import annotations

import os

import torch


def use_deterministic_algorithms() -> None:
    """From now on operations that give the same bits at every call, in this whole process; call it before any other.

    On a CPU they do so anyway.  On CUDA sums over edges otherwise depend on the order in which threads arrive.
    PyTorch raises RuntimeError at an operation that has no such form.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
    torch.use_deterministic_algorithms(True)
