"""Spherical harmonics against e3nn, and their derivatives where coordinates have poles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from denskit.geometry.harmonics import spherical_harmonics

from tolerances import EXACT64, ORACLE64

L_MAX = 6
AXES = [(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)]


def directions() -> Tensor:
    vectors = torch.cat([torch.tensor(AXES, dtype=torch.float64), torch.randn(30, 3, dtype=torch.float64)])
    return vectors / vectors.norm(dim=1, keepdim=True)


def test_equals_e3nn() -> None:
    o3 = pytest.importorskip("e3nn.o3")
    points = directions()
    for l, values in enumerate(spherical_harmonics(points, L_MAX)):
        expected = o3.spherical_harmonics(l, points, normalize=True, normalization="component")
        torch.testing.assert_close(values, expected, rtol=0, atol=ORACLE64)


def test_equals_published_version(reference_dir: Path) -> None:
    stored = np.load(reference_dir / "e3nn_reference.npz", allow_pickle=False)
    points = torch.from_numpy(stored["sh_in"])
    present = points.norm(dim=1) > 0
    points = points[present] / points[present].norm(dim=1, keepdim=True)
    expected = torch.from_numpy(stored["sh_component"])[present]
    torch.testing.assert_close(torch.cat(spherical_harmonics(points, L_MAX), 1), expected, rtol=0, atol=ORACLE64)


def test_norm_is_that_of_components_and_degree_one_is_the_vector() -> None:
    points = directions()
    values = spherical_harmonics(points, L_MAX)
    for l, value in enumerate(values):
        assert value.shape == (len(points), 2 * l + 1)
        expected = torch.full((len(points),), 2.0 * l + 1, dtype=torch.float64)
        torch.testing.assert_close(value.square().sum(1), expected, rtol=EXACT64, atol=0)
    torch.testing.assert_close(values[1], 3**0.5 * points, rtol=0, atol=EXACT64)


def test_inversion_multiplies_by_parity() -> None:
    points = directions()
    for l, (value, inverted) in enumerate(
        zip(spherical_harmonics(points, L_MAX), spherical_harmonics(-points, L_MAX), strict=True)
    ):
        torch.testing.assert_close(inverted, (-1) ** l * value, rtol=0, atol=EXACT64)


@pytest.mark.parametrize("axis", AXES)
def test_derivatives_are_right_on_the_axes(axis: tuple[int, int, int]) -> None:
    """Also where the frame behind them jumps (y = 0), since they do not depend on it."""

    def values(x: Tensor) -> Tensor:
        return torch.cat(spherical_harmonics(x / x.norm(dim=1, keepdim=True), 4), 1)

    x = 1.3 * torch.tensor([axis], dtype=torch.float64)
    x.requires_grad_()
    assert gradcheck(values, x)
    assert gradgradcheck(values, x)
