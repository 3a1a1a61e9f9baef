"""What the machine is and what it can do: the ceilings that times are compared with, and peak memory."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

MATRIX = 2048  # rows and columns of the matmul that sets the ceiling
COPY = 1 << 26  # bytes, larger than caches
REPEATS = 8


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where and with what a benchmark ran."""

    cpu: str
    cpus: int
    threads: int
    load: float  # of the last minute, before the benchmark: other processes at work
    torch: str
    e3nn: str
    matmul_gflops: float  # best of some float32 matmuls of 2048 x 2048; processor time with one thread, else wall time
    copy_gb_per_s: float  # best of some copies of 64 MiB, bytes read plus bytes written


def describe_machine() -> Machine:
    """The machine with torch's present number of threads; measures both ceilings (about a second)."""
    return Machine(
        cpu=_cpu_name(),
        cpus=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        load=os.getloadavg()[0],
        torch=torch.__version__,
        e3nn=version("e3nn"),
        matmul_gflops=matmul_gflops(),
        copy_gb_per_s=_copy_gb_per_s(),
    )


def matmul_gflops() -> float:
    """Speed of a large float32 matmul, best of a few."""
    a, b = torch.randn(2, MATRIX, MATRIX).unbind()
    out = torch.empty(MATRIX, MATRIX)
    return 2 * MATRIX**3 / _best(lambda: torch.mm(a, b, out=out)) / 1e9


def _copy_gb_per_s() -> float:
    source = torch.zeros(COPY, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * COPY / _best(lambda: target.copy_(source)) / 1e9


def _best(call: Callable[[], object]) -> float:
    # processor time is not disturbed by other processes that take their turn, but adds up over threads
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times = []
    for _ in range(REPEATS):
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)


def peak_memory_mb() -> float:
    """Largest resident memory of this process so far, in MB (10^6 bytes).

    Linux's VmHWM where it exists: ``ru_maxrss`` of a child also counts what its parent held when it was started.
    """
    kibibytes = _status("VmHWM")
    if kibibytes is not None:
        return kibibytes * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def present_memory_mb() -> float:
    """Resident memory of this process now, in MB; the peak so far where the system does not say (other than Linux)."""
    kibibytes = _status("VmRSS")
    return peak_memory_mb() if kibibytes is None else kibibytes * 1024 / 1e6


def _status(name: str) -> int | None:
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(f"{name}:"))


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
