"""What the machine is and what it can do: the ceilings that times are compared with."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from denskit_bench.peers.gauges import read_clocks

MATRIX = {"cpu": 2048, "cuda": 8192}  # rows and columns of the matmul that sets the ceiling
COPY = {"cpu": 1 << 26, "cuda": 1 << 30}  # bytes, larger than caches
REPEATS = 3  # before and after the steps
PACKAGES = ("torch", "numpy", "ase", "vesin", "e3nn", "numba")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where and with what a benchmark ran."""

    cpu: str
    cpus: int
    threads: int
    device: str  # "cpu", or the name of the GPU
    load: float  # of the last minute, before the benchmark: other processes at work
    packages: dict[str, str]  # versions of what is installed
    matmul_gflops: float  # best of some float32 matmuls, 2048 x 2048 (GPU: 8192)
    copy_gb_per_s: float  # best of some copies of 64 MiB (GPU: 1 GiB), bytes read plus bytes written

    def measured_again(self, device: torch.device) -> Machine:
        """With the better of the old ceilings and of new ones: other processes disturb either measurement."""
        return replace(
            self,
            matmul_gflops=max(self.matmul_gflops, matmul_gflops(device)),
            copy_gb_per_s=max(self.copy_gb_per_s, copy_gb_per_s(device)),
        )


def describe_machine(device: torch.device) -> Machine:
    """The machine with torch's present number of threads; measures both ceilings (about a second)."""
    load = os.getloadavg()[0]
    return Machine(
        cpu=_cpu_name(),
        cpus=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        load=load,
        packages={name: found for name in PACKAGES if (found := _version(name))},
        matmul_gflops=matmul_gflops(device),
        copy_gb_per_s=copy_gb_per_s(device),
    )


def matmul_gflops(device: torch.device) -> float:
    """Speed of a large float32 matmul, best of a few; on a GPU with torch's present precision of such products."""
    size = MATRIX[device.type]
    a, b = torch.randn(2, size, size, device=device).unbind()
    out = torch.empty(size, size, device=device)
    return 2 * size**3 / _best(lambda: torch.mm(a, b, out=out), device) / 1e9


def copy_gb_per_s(device: torch.device) -> float:
    """Bytes read plus bytes written by a large copy in a second, best of a few."""
    size = COPY[device.type]
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _best(lambda: target.copy_(source), device) / 1e9


def clock_name(device: torch.device, threads: int) -> str:
    """The clock that other processes disturb least: "device" (CUDA events), "cpu" with one thread, else "wall"."""
    if device.type == "cuda":
        return "device"
    # processor time is not disturbed by other processes that take their turn, but adds up over threads
    return "cpu" if threads == 1 else "wall"


def _best(call: Callable[[], object], device: torch.device) -> float:
    clock = clock_name(device, torch.get_num_threads())
    return min(read_clocks(call, device)[clock] for _ in range(REPEATS))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
