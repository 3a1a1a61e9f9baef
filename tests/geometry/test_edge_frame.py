"""Edge frames: rotations onto the polar axis and their Wigner-D matrices, against e3nn and by their properties."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from denskit.geometry import edge_frame
from denskit.geometry.edge_frame import edge_frames, edge_rotation, m_major, wigner_d

from tolerances import EXACT64, ORACLE64

L_MAX = 6
AXES = [(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)]
# on the plane where the frame jumps, next to it, and next to the pole -y of a frame made of angles
AWKWARD = [*AXES, (1, 0, 2), (-3, 0, 1), (1, 1e-12, 1), (1, -1e-12, 1), (1e-9, -1, 0), (0, -1, 1e-5), (1e-160, -1, 0)]


def directions(dtype: torch.dtype = torch.float64) -> Tensor:
    vectors = torch.cat([torch.tensor(AWKWARD, dtype=torch.float64), torch.randn(40, 3, dtype=torch.float64)])
    return (vectors / vectors.norm(dim=1, keepdim=True)).to(dtype)


def random_rotations(count: int) -> Tensor:
    """Proper rotations [count, 3, 3] in float64."""
    rotation = torch.linalg.qr(torch.randn(count, 3, 3, dtype=torch.float64))[0]
    return rotation * rotation.det()[:, None, None]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, EXACT64), (torch.float32, 1e-6)])
def test_rotation_carries_direction_onto_y(dtype: torch.dtype, tolerance: float) -> None:
    vectors = directions(dtype)
    rotation = edge_rotation(vectors)
    expected = torch.tensor([0.0, 1.0, 0.0], dtype=dtype).expand_as(vectors)
    torch.testing.assert_close((rotation @ vectors[..., None])[..., 0], expected, rtol=0, atol=tolerance)
    identity = torch.eye(3, dtype=dtype).expand_as(rotation)
    torch.testing.assert_close(rotation @ rotation.mT, identity, rtol=0, atol=tolerance)
    torch.testing.assert_close(rotation.det(), torch.ones(len(vectors), dtype=dtype), rtol=0, atol=tolerance)


def test_edges_along_y_need_no_rotation_or_a_half_turn() -> None:
    up, down = edge_rotation(torch.tensor([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0]]))
    assert torch.equal(up, torch.eye(3))
    assert torch.equal(down, torch.diag(torch.tensor([1.0, -1.0, -1.0])))


def test_wigner_d_is_the_representation_of_e3nn() -> None:
    """Y(R x) = D Y(x) with e3nn's harmonics, and e3nn's own matrices (made in float32 inside)."""
    o3 = pytest.importorskip("e3nn.o3")
    rotation = random_rotations(5)
    points = torch.randn(5, 20, 3, dtype=torch.float64)
    for l, matrix in enumerate(wigner_d(rotation, L_MAX)):
        before, after = (o3.spherical_harmonics(l, x, normalize=True) for x in (points, points @ rotation.mT))
        torch.testing.assert_close(before @ matrix.mT, after, rtol=0, atol=ORACLE64)
        torch.testing.assert_close(matrix, o3.Irrep(l, 1).D_from_matrix(rotation), rtol=0, atol=1e-5)


def test_wigner_d_equals_published_version(reference_dir: Path) -> None:
    stored = np.load(reference_dir / "e3nn_reference.npz", allow_pickle=False)
    names = [name for name in stored.files if name.startswith("D_")]
    assert names and "R" in stored.files
    blocks = wigner_d(torch.from_numpy(stored["R"]).reshape(-1, 3, 3), L_MAX)
    for name in names:
        expected = torch.from_numpy(stored[name])
        torch.testing.assert_close(blocks[int(name[2:])].reshape(expected.shape), expected, rtol=0, atol=ORACLE64)


def test_wigner_d_is_orthogonal_and_composes() -> None:
    first, second = random_rotations(8), random_rotations(8)
    for a, b, both in zip(
        wigner_d(first, L_MAX), wigner_d(second, L_MAX), wigner_d(first @ second, L_MAX), strict=True
    ):
        torch.testing.assert_close(a @ a.mT, torch.eye(a.shape[-1], dtype=a.dtype).expand_as(a), rtol=0, atol=EXACT64)
        torch.testing.assert_close(a.det(), torch.ones(8, dtype=a.dtype), rtol=0, atol=EXACT64)
        torch.testing.assert_close(a @ b, both, rtol=0, atol=EXACT64)


def test_wigner_d_of_low_degrees() -> None:
    rotation = random_rotations(3)
    for l_max in (0, 1):
        blocks = wigner_d(rotation, l_max)
        assert len(blocks) == l_max + 1
        assert torch.equal(blocks[0], torch.ones(3, 1, 1, dtype=torch.float64))
    assert torch.equal(blocks[1], rotation)


def test_frames_are_wigner_d_with_rows_by_order() -> None:
    assert m_major(0) == (0,)
    assert m_major(2) == (2, 3, 1, 4, 0)  # m = 0, +1, -1, +2, -2 among -2..2
    vectors = directions() * torch.linspace(0.5, 4.0, len(directions()), dtype=torch.float64)[:, None]
    frames = edge_frames(vectors, L_MAX)
    torch.testing.assert_close(frames.length, vectors.norm(dim=1), rtol=EXACT64, atol=0)
    torch.testing.assert_close(frames.direction * frames.length[:, None], vectors, rtol=0, atol=EXACT64)
    for l, block in enumerate(wigner_d(edge_rotation(frames.direction), L_MAX)):
        assert torch.equal(frames.wigner[l], block[:, list(m_major(l))])


def test_the_edge_has_only_order_zero_in_its_frame() -> None:
    o3 = pytest.importorskip("e3nn.o3")
    vectors = directions()
    for l, block in enumerate(edge_frames(vectors, L_MAX).wigner):
        turned = (block @ o3.spherical_harmonics(l, vectors, True, normalization="component")[..., None])[..., 0]
        expected = torch.zeros_like(turned)
        expected[:, 0] = math.sqrt(2 * l + 1)
        torch.testing.assert_close(turned, expected, rtol=0, atol=ORACLE64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_are_finite_everywhere(dtype: torch.dtype) -> None:
    vectors = (1.5 * directions(dtype)).requires_grad_()
    frames = edge_frames(vectors, L_MAX)
    total = (
        torch.stack([(block * torch.randn_like(block)).sum() for block in frames.wigner]).sum() + frames.length.sum()
    )
    (first,) = torch.autograd.grad(total, vectors, create_graph=True)
    (second,) = torch.autograd.grad((first * torch.randn_like(first)).sum(), vectors)
    assert bool(first.isfinite().all()) and bool(second.isfinite().all())
    assert float(second.abs().max()) < 1e4  # no pole nearby either


@pytest.mark.parametrize("vector", [(0.0, 1.4, 0.0), (0.0, -1.4, 0.0), (0.3, 1.0, -0.8), (0.9, -0.4, 0.1)])
def test_derivatives_are_right(vector: tuple[float, float, float]) -> None:
    def frames(x: Tensor) -> tuple[Tensor, ...]:
        made = edge_frames(x, 2)
        return (made.length, made.direction, *made.wigner[1:])

    x = torch.tensor([vector], dtype=torch.float64, requires_grad=True)
    assert gradcheck(frames, x)
    assert gradgradcheck(frames, x)


def test_same_edge_same_frame() -> None:
    """The frame depends on the edge alone, bit for bit: not on the call, nor on the length."""
    vectors = directions()
    first, again, longer = edge_frames(vectors, 3), edge_frames(vectors, 3), edge_frames(4 * vectors, 3)
    for a, b, c in zip(first.wigner, again.wigner, longer.wigner, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)


def test_constants_made_in_inference_mode_serve_training() -> None:
    edge_frame._coupling.cache_clear()
    with torch.inference_mode():
        edge_frames(torch.tensor([[0.0, 1.0, 1.0]]), 3)
    vectors = torch.tensor([[0.0, 1.0, 1.0]], requires_grad=True)
    edge_frames(vectors, 3).wigner[3].sum().backward()
    assert vectors.grad is not None


def test_no_edges() -> None:
    frames = edge_frames(torch.zeros(0, 3), 2)
    assert [tuple(block.shape) for block in frames.wigner] == [(0, 1, 1), (0, 3, 3), (0, 5, 5)]
