"""Bitwise reproducible results on a GPU."""

from __future__ import annotations

import os

import torch


def use_deterministic_algorithms() -> None:
    """Use deterministic algorithms in this process; call it before any computation.

    On CUDA sums over edges otherwise depend on the order of threads; on a CPU results are reproducible anyway.
    PyTorch raises RuntimeError at an operation without a deterministic algorithm.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
    torch.use_deterministic_algorithms(True)
