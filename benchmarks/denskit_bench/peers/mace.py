"""MACE with random weights in ASE's velocity Verlet; runs in MACE's environment."""

from __future__ import annotations

from typing import Any

from .dynamics import verlet
from .serving import Step


def build(job: dict[str, Any]) -> tuple[Step, dict[str, Any]]:
    """Two layers and correlation order 3, as usual; as many channels of each degree as asked.

    Eager, as its calculator runs a model that it is given, or with ``job["compile"]`` by ``torch.compile``.
    """
    import numpy as np
    import torch
    from e3nn import o3
    from mace import modules
    from mace.calculators import MACECalculator

    irreps = " + ".join(f"{job['channels']}x{l}{'eo'[l % 2]}" for l in range(job["l_max"] + 1))
    numbers = job["elements"]
    model = modules.ScaleShiftMACE(
        r_max=job["cutoff"], num_bessel=8, num_polynomial_cutoff=5, max_ell=3, num_interactions=2,
        num_elements=len(numbers),
        interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
        interaction_cls_first=modules.interaction_classes["RealAgnosticInteractionBlock"],
        hidden_irreps=o3.Irreps(irreps), MLP_irreps=o3.Irreps("16x0e"), correlation=3,
        atomic_energies=np.zeros(len(numbers)), avg_num_neighbors=8.0, atomic_numbers=numbers,
        gate=torch.nn.functional.silu, atomic_inter_scale=1.0, atomic_inter_shift=0.0,
    )  # fmt: skip
    parameters = sum(parameter.numel() for parameter in model.parameters())
    mode = "default" if job["compile"] else None
    calculator = MACECalculator(
        models=[model.float()], device=job["device"], default_dtype="float32", compile_mode=mode
    )
    return verlet(job, calculator), {"parameters": parameters}
