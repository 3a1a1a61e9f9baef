"""How a computation runs: its device, its floating-point type, whether its results repeat."""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import DTypeLike


def choose_device(device: str, local_rank: int | None = None) -> torch.device:
    """The device of a name; "auto": CUDA if available, else the CPU.

    local_rank: number of the CUDA device for a name without number; None: torch's current one.

    Raises ValueError for an unknown device, and for a CUDA device that is not there.
    """
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        chosen = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device={device}: no such device; use auto, cpu, cuda or cuda:N") from None
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device={device}: training and evaluation run on cpu and cuda")
    if chosen.type == "cuda":
        index = chosen.index if chosen.index is not None else local_rank
        if index is None:
            index = torch.cuda.current_device() if torch.cuda.is_available() else 0
        if index >= torch.cuda.device_count():
            raise ValueError(f"device={device}: {torch.cuda.device_count()} CUDA devices found; use device=cpu")
        return torch.device("cuda", index)
    return chosen


def gpus_to_share(device: str) -> list[str]:
    """The GPUs among which processes with this device can be divided, as ``CUDA_VISIBLE_DEVICES`` names them.

    None for the CPU, and for a device with a number.  Raises as :func:`choose_device`.
    """
    if choose_device(device).type != "cuda" or ":" in device:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(torch.cuda.device_count()))) if visible is None else visible.split(",")
    return names[: torch.cuda.device_count()]


DTYPES = {"float32": torch.float32, "float64": torch.float64}
DType = str | torch.dtype | DTypeLike | None  # None: as the model is


def dtype_of(dtype: DType) -> torch.dtype | None:
    """The type of a name ("float32", "float64"), a NumPy or a torch type; None stays None.

    Raises ValueError for any other.
    """
    if dtype is None or dtype in DTYPES.values():
        return dtype  # type: ignore[return-value]
    try:
        return DTYPES[np.dtype(dtype).name]  # type: ignore[arg-type]
    except (TypeError, KeyError):
        raise ValueError(f"dtype is {dtype!r}; give {' or '.join(DTYPES)}") from None


def use_deterministic_algorithms() -> None:
    """Use deterministic algorithms in this process; call it before any computation.

    On CUDA sums over edges otherwise depend on the order of threads; on a CPU results are reproducible anyway.
    PyTorch raises RuntimeError at an operation without a deterministic algorithm.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
    torch.use_deterministic_algorithms(True)
