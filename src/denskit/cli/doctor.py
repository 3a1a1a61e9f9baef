"""``denskit doctor``: versions, devices and threads; the first thing to paste into a bug report."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from rich.console import Console
from rich.table import Table

PACKAGES = ("denskit", "torch", "numpy", "numba", "ase", "vesin", "pydantic", "safetensors", "tblite", "e3nn")


def doctor() -> None:
    """Show versions, devices, kernels and threads.

    Example:  denskit doctor
    """
    import platform

    import torch

    from denskit.models import MODELS

    table = Table("item", "found", title="denskit doctor")
    table.add_row("Python", platform.python_version())
    table.add_row("system", platform.platform())
    for package in PACKAGES:
        table.add_row(package, _version(package))
    table.add_row("CPU threads", f"{torch.get_num_threads()} (OMP_NUM_THREADS sets them)")
    problems = [problem for entry in MODELS.values() if (problem := entry.backbone.kernels_problem("cpu"))]
    table.add_row("kernels on CPUs", "; ".join(problems) or "fused")
    table.add_row("CUDA", _cuda())
    Console().print(table)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cuda() -> str:
    import torch

    if not torch.cuda.is_available():
        return "not available"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{torch.version.cuda}: {', '.join(names)}"
