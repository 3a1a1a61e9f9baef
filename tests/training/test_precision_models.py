"""Every architecture in half precision and with activation checkpointing: gradients of one step of a slab."""

from __future__ import annotations

import pytest
import torch

from contract.variants import equiformer, equiformer_v2, escn
from denskit.batch import System
from denskit.data.base import collate
from denskit.models import ModelConfig, build_force_field
from denskit.models.base import ForceField
from denskit.models.execution import Execution
from denskit.models.scaling import Scaling
from denskit.random import keys_for
from denskit.tasks import DeNS, DeNSConfig, total_loss
from denskit.training.optimizer import Precision

BF16 = 0.2  # relative to the norm of the gradient: 8 bits through a few layers; found: 0.02 to 0.07
SAME32 = 1e-5  # the same numbers added in another order in float32

CONFIGS: dict[str, ModelConfig] = {
    "equiformer": equiformer(forces="direct"),
    "equiformer_v2": equiformer_v2(forces="direct", num_layers=2),
    "equiformer_v2_gate": equiformer_v2(forces="direct", num_layers=2, activation="gate", grid_mlp=False),
    "escn": escn(forces="direct"),
}
TASK = DeNS(DeNSConfig(probability=1.0, corruption_ratio=0.5, sigma=0.1, loss="published_oc20"))


def _model(config: ModelConfig) -> ForceField:
    torch.manual_seed(0)
    scaling = Scaling(elements=[6, 8, 29], energy_scale=20.0)
    return build_force_field(config, heads=TASK.heads, scaling=scaling).train()


def _gradients(model: ForceField, slab: System, amp: str) -> torch.Tensor:
    """Gradients [P] of DeNS's loss on two slabs."""
    prepared = TASK.prepare(*collate([slab, slab]), keys_for(0, 0, [0, 1]), 0.0)
    batch = model.config.with_neighbors(prepared.batch)
    precision = Precision(amp, torch.device("cpu"))  # type: ignore[arg-type]
    torch.manual_seed(1)
    with precision.autocast():
        prediction = model(batch, prepared.force_input)
    targets = model.scaling.scale_targets(batch, prepared.targets)
    assert {value.dtype for value in prediction.values()} == {torch.float32}
    total_loss(TASK.losses(prediction, type(prepared)(**{**vars(prepared), "targets": targets}), 0.0)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_gradients_are_those_of_float32_to_its_rounding(name: str, systems: dict[str, System]) -> None:
    exact, rounded = (_gradients(_model(CONFIGS[name]), systems["slab"], amp) for amp in ("none", "bf16"))
    difference = torch.linalg.vector_norm(rounded - exact) / torch.linalg.vector_norm(exact)
    assert 1e-4 < difference < BF16


@pytest.mark.parametrize("name", CONFIGS)
def test_activation_checkpointing_changes_nothing(name: str, systems: dict[str, System]) -> None:
    plain, checkpointed = _model(CONFIGS[name]), _model(CONFIGS[name])
    checkpointed.execution = Execution(recompute=True)
    expected, found = (_gradients(model, systems["slab"], "none") for model in (plain, checkpointed))
    difference = torch.linalg.vector_norm(found - expected) / torch.linalg.vector_norm(expected)
    assert difference < SAME32
