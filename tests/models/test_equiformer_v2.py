"""EquiformerV2: the seam of the gauge, plain and chunked messages, what configurations are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from denskit.batch import Batch, System
from denskit.data.base import collate
from denskit.models import ForceField, build_force_field
from denskit.models.equiformer_v2 import EquiformerV2Config
from denskit.models.scaling import Scaling

from tolerances import EQUIVARIANCE64

SMALL = {
    "cutoff": 4.0, "max_neighbors": None, "num_layers": 1, "l_max": 3, "m_max": 2, "channels": 8, "hidden_channels": 4,
    "num_heads": 2, "alpha_channels": 4, "value_channels": 2, "ffn_channels": 8, "edge_channels": 8, "num_basis": 16,
    "attention_dropout": 0.0, "stochastic_depth": 0.0,
}  # fmt: skip
SEAM = {8: 1e-2, 12: 1e-4, 16: 1e-6}  # jump of forces, relative to their rms, by the grid's resolution


def build(**changes: object) -> ForceField:
    torch.manual_seed(3)
    config = EquiformerV2Config.model_validate(SMALL | changes)
    force_field = build_force_field(config, heads={}, scaling=Scaling(elements=[1, 8])).double().eval()
    with torch.no_grad():
        for parameter in force_field.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return force_field


def water_at(height: float, force_field: ForceField) -> Batch:
    """Water with a hydrogen ``height`` Å above the plane y = 0 through the oxygen."""
    system = System(
        positions=np.array([[0.0, 0.0, 0.0], [0.9, height, 0.3], [-0.5, 0.7, 0.4]]), atomic_numbers=np.array([8, 1, 1]),
        cell=np.zeros((3, 3)), pbc=np.zeros(3, dtype=bool), fixed=np.zeros(3, dtype=bool), tags=np.zeros(3, dtype=int),
    )  # fmt: skip
    batch, _ = collate([system], torch.float64)
    return force_field.config.with_neighbors(batch)


def seam(force_field: ForceField) -> float:
    """Change of the forces across y = 0, relative to their rms."""
    above, below = (force_field(water_at(height, force_field))["forces"].detach() for height in (1e-12, -1e-12))
    return float((above - below).abs().max() / above.square().mean().sqrt())


def test_the_jump_at_the_seam_falls_with_the_resolution() -> None:
    jumps = {resolution: seam(build(grid_resolution=resolution)) for resolution in SEAM}
    assert all(jump < SEAM[resolution] for resolution, jump in jumps.items()), jumps
    assert jumps[8] > 10 * jumps[16] > 1e-10  # it is there, and it is the grid's


def test_gates_have_no_seam() -> None:
    assert seam(build(activation="gate", grid_mlp=False)) < EQUIVARIANCE64


@pytest.mark.parametrize("forces", ["direct", "gradient"])
def test_messages_in_chunks_are_plain_messages(forces: str) -> None:
    """Frames that are differentiated make plain operations; energies and weight gradients are the same."""
    force_field = build(forces=forces)
    batch = water_at(0.2, force_field)

    def gradients(given: Batch) -> tuple[Tensor, list[Tensor]]:
        energy = force_field(given, None, ("energy",))["energy"]
        grads = torch.autograd.grad(energy.sum(), list(force_field.parameters()), allow_unused=True)
        return energy.detach(), [g for g in grads if g is not None]

    chunked = gradients(batch)
    plain = gradients(replace(batch, positions=batch.positions.clone().requires_grad_()))
    torch.testing.assert_close(chunked, plain, rtol=1e-9, atol=1e-12)


def test_two_trainings_steps_are_equal_bit_for_bit() -> None:
    force_field = build()
    batch = water_at(0.2, force_field)
    first, second = (
        torch.autograd.grad(
            force_field(batch)["forces"].square().sum(), list(force_field.parameters()), allow_unused=True
        )
        for _ in range(2)
    )
    for a, b in zip(first, second, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


def test_half_precision_autocast_runs_and_is_near() -> None:
    force_field = build().float().train()
    batch = water_at(0.2, force_field).to(dtype=torch.float32)
    expected = force_field(batch)["forces"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        forces = force_field(batch)["forces"]
    assert forces.dtype == torch.float32
    assert not torch.equal(forces, expected)  # the products were in half precision
    forces.square().sum().backward()
    assert float((forces - expected).detach().abs().max()) < 0.1 * float(expected.detach().abs().max())
    assert all(bool(p.grad.isfinite().all()) for p in force_field.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m_max": 4}, "m_max=4 is above l_max=3"),
        ({"grid_resolution": 9}, "grid_resolution=9: l_max=3 wants an even number of at least 8"),
        ({"grid_resolution": 6}, "grid_resolution=6"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EquiformerV2Config.model_validate(SMALL | changes)


def test_unknown_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="EquiformerV2 has heads '0', '1', not '2'"):
        build().backbone.make_head("2")
