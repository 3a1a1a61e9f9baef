"""Clocks and memory, read in the same way in our process and in a peer's."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch


def read_clocks(call: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Seconds of one call by every clock: "wall", "cpu" (of this process), on a GPU also "device" (events)."""
    if device.type != "cuda":
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    wall, cpu = time.perf_counter(), time.process_time()
    begin.record()
    call()
    end.record()
    end.synchronize()
    times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    return {**times, "device": begin.elapsed_time(end) / 1e3}


def peak_memory_mb(device: torch.device) -> float:
    """Largest memory so far, in MB (10^6 bytes): resident of this process, or allocated on the GPU.

    Linux's VmHWM where it exists: ``ru_maxrss`` of a child also counts what its parent held when it was started.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    kibibytes = _status("VmHWM")
    if kibibytes is not None:
        return kibibytes * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def forget_peak(device: torch.device) -> None:
    """Let :func:`peak_memory_mb` begin anew from what is held now, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def present_memory_mb(device: torch.device) -> float:
    """Memory held now, in MB, as :func:`peak_memory_mb`; the peak so far where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device) / 1e6
    kibibytes = _status("VmRSS")
    return peak_memory_mb(device) if kibibytes is None else kibibytes * 1024 / 1e6


def _status(name: str) -> int | None:
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(f"{name}:"))
