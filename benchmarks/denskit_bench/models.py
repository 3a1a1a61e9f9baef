"""The models that benchmarks run, by name: sizes of the paper and of the presets, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from denskit.models import build_force_field
from denskit.models.base import ForceField
from denskit.models.config import ModelConfig
from denskit.models.equiformer import EquiformerConfig
from denskit.models.equiformer.published_settings import MD17_CONFIGS
from denskit.models.equiformer_v2 import EquiformerV2Config
from denskit.models.equiformer_v3 import EquiformerV3Config
from denskit.models.escn import ESCNConfig
from denskit.models.esen import ESENConfig
from denskit.models.execution import Execution, KernelName
from denskit.models.scaling import Scaling
from denskit_bench.job import Job
from denskit_bench.systems import ELEMENTS


def _equiformer(*channels: int) -> EquiformerConfig:
    """Three layers, smooth at the cutoff: the shape of the ``equiformer`` preset for small data."""
    return EquiformerConfig(
        num_layers=3, channels=channels, feature_channels=tuple(2 * c for c in channels),
        head_channels=tuple(c // 4 for c in channels), ffn_channels=tuple(2 * c for c in channels),
        envelope=True, average_degree=8.0, average_atoms=9.0,
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], ModelConfig], str]] = {
    "equiformer_l2": (lambda: MD17_CONFIGS[2], "the paper's for MD17, L = 2"),
    "equiformer_l3": (lambda: MD17_CONFIGS[3], "the paper's for MD17, L = 3"),
    "equiformer_small": (lambda: _equiformer(64, 32, 16), "3 layers, 64 + 32 + 16 channels"),
    "equiformer_wide": (lambda: _equiformer(64, 64, 64), "3 layers, 64 channels of each degree, as MACE and NequIP"),
    "equiformer_v2": (EquiformerV2Config, "the paper's 83M for OC20, direct forces"),
    "equiformer_v2_gradient": (
        lambda: EquiformerV2Config(
            cutoff=5.0, max_neighbors=None, forces="gradient", num_layers=6, l_max=4, channels=96, hidden_channels=48,
            alpha_channels=48, value_channels=12, ffn_channels=96, edge_channels=96, num_basis=128, activation="gate",
            grid_mlp=False, envelope=True,
        ),
        "6 layers, L = 4, smooth, forces by gradient: the preset for large data",
    ),
    "equiformer_v3": (lambda: EquiformerV3Config(num_elements=128), "the published one for MPtrj, direct forces"),
    "equiformer_v3_gradient": (
        lambda: EquiformerV3Config(num_elements=128, forces="gradient"),
        "the published 30M for MPtrj, forces by gradient",
    ),
    "escn": (ESCNConfig, "the paper's 52M for OC20, direct forces"),
    "esen": (ESENConfig, "the published 30M for MPtrj, direct forces"),
    "esen_gradient": (lambda: ESENConfig(forces="gradient"), "the same with forces by gradient"),
}  # fmt: skip
LISTS = ("channels", "feature_channels", "head_channels", "ffn_channels")  # one number a degree


def config_of(job: Job) -> ModelConfig:
    """The configuration that a job names, without dropout.

    Raises ValueError, listing the known, for another name, and for sizes that the model does not take.
    """
    if job.model not in MODELS:
        known = "; ".join(f"{name} ({what})" for name, (_, what) in MODELS.items())
        raise ValueError(f"no model {job.model!r}; known are {known}")
    config = MODELS[job.model][0]()
    changes: dict[str, Any] = {name: 0.0 for name in type(config).model_fields if "dropout" in name}
    changes |= {"stochastic_depth": 0.0} if "stochastic_depth" in type(config).model_fields else {}
    changes |= {"num_layers": job.layers} if job.layers is not None else {}
    changes |= {"cutoff": job.cutoff} if job.cutoff is not None else {}
    changes |= {"max_neighbors": job.max_neighbors} if job.max_neighbors is not None else {}
    if (job.kernels is not None or job.against == "plain") and not isinstance(config, EquiformerConfig):
        raise ValueError(f"{job.model} computes in one way: --kernels and --against plain are for Equiformer")
    if job.l_max is not None:
        changes |= _degrees(config, job.l_max)
    return type(config).model_validate(config.model_dump() | changes)


def _degrees(config: ModelConfig, l_max: int) -> dict[str, Any]:
    """Changes for another highest degree; Equiformer's new degrees are as wide as its last."""
    if not isinstance(config, EquiformerConfig):
        orders = min(getattr(config, "m_max", l_max), l_max)
        return {"l_max": l_max, "m_max": orders}
    old = {name: getattr(config, name) for name in LISTS}
    return {name: (values + (values[-1],) * l_max)[: l_max + 1] for name, values in old.items()}


def build(
    config: ModelConfig, *, dens: bool, dtype: torch.dtype, device: torch.device, kernels: KernelName
) -> ForceField:
    """A force field with fresh weights (seed 0) that knows the elements of all systems."""
    torch.manual_seed(0)
    heads = {"noise": "1"} if dens else {}
    force_field = build_force_field(config, heads=heads, scaling=Scaling(elements=ELEMENTS))
    force_field.to(dtype=dtype, device=device)
    force_field.execution = Execution(kernels=kernels)
    force_field.backbone.choose_kernels(force_field.execution, device)  # raises where there are none
    return force_field
