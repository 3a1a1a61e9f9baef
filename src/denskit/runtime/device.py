"""Which device to compute on."""

from __future__ import annotations

import torch


def choose_device(device: str, local_rank: int | None = None) -> torch.device:
    """The device that a name stands for; "auto" is CUDA where there is one, else the CPU.

    Raises ValueError for a name that torch does not know, and for CUDA where there is none.
    """
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        chosen = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device={device}: no such device; use auto, cpu, cuda or cuda:N") from None
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device={device}: training and evaluation run on cpu and cuda")
    if chosen.type == "cuda":
        index = local_rank if chosen.index is None and local_rank is not None else chosen.index or 0
        if index >= torch.cuda.device_count():
            raise ValueError(f"device={device}: {torch.cuda.device_count()} CUDA devices found; use device=cpu")
        return torch.device("cuda", index)
    return chosen
