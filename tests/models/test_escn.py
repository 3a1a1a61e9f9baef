"""What is eSCN's own: its settings, its initial weights, and how large the errors of its sampling are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from contract.variants import build
from denskit.batch import Batch, System
from denskit.data.base import collate
from denskit.geometry.edge_frame import EdgeFrames, edge_frames, edge_rotation, m_major, wigner_d
from denskit.models import build_force_field
from denskit.models.escn import ESCN, ESCNConfig
from denskit.models.escn.layers import sphere_points
from denskit.models.execution import Execution
from denskit.models.scaling import Scaling

from tolerances import EXACT64

SMALL = ESCNConfig(
    cutoff=4.0, max_neighbors=None, num_layers=2, l_max=2, m_max=1, channels=6, hidden_channels=5, edge_channels=4,
    num_basis=16,
)  # fmt: skip


def turned_frames(batch: Batch, l_max: int) -> EdgeFrames:
    """Frames whose gauge, the rotation about the edge, is drawn at random."""
    own = edge_frames(batch.edge_vectors(), l_max)
    angle = 6.28 * torch.rand(len(own.length), dtype=torch.float64)
    cos, sin, zero, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    rows = [torch.stack(row, -1) for row in ((cos, zero, sin), (zero, one, zero), (-sin, zero, cos))]
    blocks = wigner_d(torch.stack(rows, -2) @ edge_rotation(own.direction), l_max)
    return replace(own, wigner=tuple(block[:, list(m_major(l))] for l, block in enumerate(blocks)))


def test_orders_beyond_the_degrees_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"m_max=3 is above l_max=2"):
        ESCNConfig(l_max=2, m_max=3)


def test_heads_that_it_does_not_have() -> None:
    with pytest.raises(ValueError, match="ESCN has heads '0', '1', not '2'"):
        ESCN(SMALL, {"energy": "0"}, 1.0).make_head("2")


def test_initial_embeddings_and_encoding_are_small() -> None:
    """Published: within 0.001, so that at first elements do not matter on edges, nor forces that are shown."""
    force_field = build_force_field(SMALL, heads={"noise": "1"}, scaling=Scaling(elements=[1]))
    small = [
        parameter.detach().abs().max()
        for name, parameter in force_field.named_parameters()
        if "force_encoding" in name or name.endswith(("edge_embedding.source.weight", "edge_embedding.target.weight"))
    ]
    assert len(small) == 3 + 2 * 2
    assert all(0 < float(value) <= 0.001 for value in small)


def test_points_stand_for_equal_shares() -> None:
    """Weighted by density: lengths are near 1 and their mean is 1; the sum of all points nearly vanishes."""
    points = sphere_points(128)
    lengths = points.norm(dim=1)
    assert float(lengths.mean()) == pytest.approx(1.0, abs=1e-12)
    assert 0.8 < float(lengths.min()) <= float(lengths.max()) < 1.2
    assert float(points.mean(0).norm()) < 0.01


@pytest.mark.parametrize("m_max", [1, 2])
def test_energy_depends_on_the_gauge_by_its_sampling_error_only(m_max: int, systems: dict[str, System]) -> None:
    """Small, but there: this is why eSCN does not promise smooth gradient forces."""
    force_field = build("escn", torch.float64, m_max=m_max)
    batch, _ = collate([systems["triclinic"]], torch.float64)
    batch = force_field.config.with_neighbors(batch)
    energy = force_field(batch, None, ("energy",))["energy"]
    turned = force_field(batch, None, ("energy",), edge_frames=turned_frames(batch, 2))["energy"]
    error = float((turned - energy).detach().abs() / energy.detach().abs())
    assert EXACT64 < error < 1e-3


def test_blocks_may_be_computed_again(systems: dict[str, System]) -> None:
    """Activation checkpointing changes memory, not gradients."""
    gradients = []
    for again in (False, True):
        force_field = build("escn", torch.float64).train()
        force_field.execution = Execution(recompute=again)
        batch = force_field.config.with_neighbors(collate([systems["ethanol"]], torch.float64)[0])
        out = force_field(batch, batch.positions)
        sum(value.square().sum() for value in out.values()).backward()
        gradients.append([parameter.grad for parameter in force_field.parameters()])
    largest = max(float(gradient.abs().max()) for gradient in gradients[0])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=EXACT64 * largest)


def test_half_precision_stays_near(systems: dict[str, System]) -> None:
    """Under autocast, as in training with amp; sums and outputs are float32."""
    force_field = build("escn", torch.float32)
    batch = force_field.config.with_neighbors(collate([systems["ethanol"]], torch.float32)[0])
    expected = force_field(batch, batch.positions)
    with torch.autocast("cpu", torch.bfloat16):
        actual = force_field(batch, batch.positions)
    for name, value in expected.items():
        assert actual[name].dtype == torch.float32
        scale = float(value.detach().square().mean().sqrt())
        assert float((actual[name] - value).detach().abs().max()) < 0.2 * scale, name  # found: 0.07
