"""``denskit doctor``: versions, devices and threads; the first thing to paste into a bug report."""

from __future__ import annotations

import os

from denskit.cli.output import give, show_table

PACKAGES = ("denskit", "torch", "numpy", "numba", "ase", "vesin", "pydantic", "safetensors", "tblite", "e3nn")


def doctor() -> None:
    """Show versions, devices, kernels and threads.

    Example:  denskit doctor
    """
    import platform

    import torch

    from denskit.models import MODELS
    from denskit.training.run_folder import version_of

    problems = [problem for entry in MODELS.values() if (problem := entry.backbone.kernels_problem("cpu"))]
    found = {
        "Python": platform.python_version(),
        "system": platform.platform(),
        **{package: version_of(package) or "not installed" for package in PACKAGES},
        "CPU threads": f"{torch.get_num_threads()} (OMP_NUM_THREADS sets them)",
        "idle threads look for work": _waiting(),
        "kernels on CPUs": "; ".join(f"plain: {problem}" for problem in problems) or "fused (equiformer); others plain",
        "kernels on GPUs": "plain",
        "CUDA": _cuda(),
    }
    give(**found)
    show_table(("item", "found"), found.items(), title="denskit doctor")


def _waiting() -> str:
    given = {name: os.environ[name] for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT") if name in os.environ}
    return ", ".join(f"{name}={value}" for name, value in given.items()) or "as long as OpenMP's default"


def _cuda() -> str:
    import torch

    if not torch.cuda.is_available():
        return "not available"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{torch.version.cuda}: {', '.join(names)}"
