"""Every model on another device, by every way of computing, gives what the CPU gives with plain kernels.

The device is that of $DENSKIT_DEVICE, or a CUDA device where there is one; without either these tests are skipped.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from contract.variants import VARIANTS, build
from denskit.batch import Batch, System
from denskit.data.base import collate
from denskit.geometry.neighbors import build_neighbors
from denskit.models.base import ForceField
from denskit.models.execution import Execution
from denskit.simulation.neighbor_list import unusable

from tolerances import REFERENCE64, SAME_GRADIENT64

DEVICE = os.environ.get("DENSKIT_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        "DENSKIT_DEVICE" not in os.environ and not torch.cuda.is_available(), reason="no CUDA device, no DENSKIT_DEVICE"
    ),
]
WAYS = {
    "auto": Execution(),
    "plain": Execution(kernels="plain"),
    "chunks": Execution(edge_chunk=60),
    "recomputed": Execution(recompute=True),
}


@pytest.fixture(scope="module")
def batch(systems: dict[str, System]) -> Batch:
    chosen = [systems[name] for name in ("ethanol", "water", "triclinic")]
    return build_neighbors(collate(chosen, torch.float64)[0], 4.0)


def learned(force_field: ForceField, batch: Batch) -> dict[str, Tensor]:
    """The outputs, and the gradient of their squares with respect to all parameters, on the CPU."""
    noise = torch.zeros_like(batch.positions) if "noise" in force_field.heads else None
    outputs = force_field.train()(batch, noise)
    loss = torch.stack([value.square().sum() for value in outputs.values()]).sum()
    gradients = torch.autograd.grad(loss, list(force_field.parameters()), allow_unused=True)
    flat = torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])
    return {name: value.detach().cpu() for name, value in (outputs | {"gradient": flat}).items()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_device_computes_what_the_cpu_does(name: str, way: str, batch: Batch) -> None:
    reference = build(name, torch.float64)
    reference.execution = WAYS["plain"]
    expected = learned(reference, batch)
    moved = build(name, torch.float64).to(DEVICE)
    moved.execution = WAYS[way]
    found = learned(moved, batch.to(DEVICE))
    for key, value in expected.items():
        size = value.square().mean().sqrt().clamp(min=1e-12)
        tolerance = REFERENCE64 if key == "gradient" else SAME_GRADIENT64
        assert (found[key] - value).abs().max() < tolerance * size, key


def test_broken_systems_are_found_on_a_device(batch: Batch) -> None:
    positions = batch.positions.clone()
    positions[1] = positions[0]
    broken = unusable(replace(batch, positions=positions, edges=None).to(DEVICE), 4.0)
    assert broken.tolist() == [True, False, False]
