"""Sphere grids against the stored matrices of the published models, and against the integrals that they stand for."""

from __future__ import annotations

import re
from math import pi
from pathlib import Path

import numpy as np
import pytest
import torch

from denskit.geometry.edge_frame import wigner_d
from denskit.geometry.grid import (
    Normalisation,
    grid_points,
    quadrature_weights,
    s2_grid,
)
from denskit.geometry.harmonics import spherical_harmonics

from tolerances import EXACT64

FLOAT32 = 1e-7  # absolute: some matrices are stored in float32


def test_equals_published_matrices(reference_dir: Path) -> None:
    stored = np.load(reference_dir / "v2_escn_grid_reference.npz", allow_pickle=False)
    names = [name for name in stored if "_grid_" in name]
    assert len(names) >= 20, "the folder holds EquiformerV2 and eSCN matrices at several degrees"
    for name in names:
        model, direction, l_max, m_max = re.fullmatch(r"(v2|escn)_(to|from)_grid_L(\d)M(\d)(?:R\d+)?", name).groups()  # type: ignore[union-attr]
        expected = torch.from_numpy(stored[name])
        normalisation: Normalisation = "component" if model == "v2" else "integral"
        pair = s2_grid(int(l_max), int(m_max), tuple(expected.shape[:2]), normalisation)
        bound = EXACT64 if expected.dtype == torch.float64 else FLOAT32
        matrix = pair[0 if direction == "to" else 1]
        torch.testing.assert_close(matrix, expected.double(), rtol=0, atol=bound, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("normalisation", ["component", "integral"])
@pytest.mark.parametrize(("l_max", "m_max", "resolution"), [(2, 2, (6, 5)), (4, 4, (10, 11)), (6, 6, (18, 18))])
def test_there_and_back_is_the_identity(
    normalisation: Normalisation, l_max: int, m_max: int, resolution: tuple[int, int]
) -> None:
    to_grid, from_grid = s2_grid(l_max, m_max, resolution, normalisation)
    product = torch.einsum("abi,abj->ij", from_grid, to_grid)
    torch.testing.assert_close(product, torch.eye((l_max + 1) ** 2, dtype=torch.float64), rtol=0, atol=EXACT64)


def test_truncated_coefficients_are_those_of_the_whole_grid() -> None:
    whole, back = s2_grid(4, 4, (10, 11), "integral")
    kept = [i for i, m in enumerate(m for l in range(5) for m in range(-l, l + 1)) if abs(m) <= 2]
    part, part_back = s2_grid(4, 2, (10, 11), "integral")
    assert len(kept) == part.shape[-1]
    assert torch.equal(part, whole[..., kept]) and torch.equal(part_back, back[..., kept])


def test_integral_coefficients_have_unit_norm_on_the_sphere() -> None:
    to_grid, _ = s2_grid(3, 3, (16, 9), "integral")
    weights = 4 * pi * quadrature_weights((16, 9))[:, None, None]
    gram = torch.einsum("abi,abj->ij", to_grid, weights * to_grid)
    torch.testing.assert_close(gram, torch.eye(16, dtype=torch.float64), rtol=0, atol=EXACT64)


def test_quadrature_is_exact_for_polynomials() -> None:
    """The mean of y^2k over the sphere is 1 / (2k + 1)."""
    y = grid_points((8, 3))[..., 1]
    weights = quadrature_weights((8, 3))[:, None]
    for k in range(4):
        assert float((weights * y ** (2 * k)).sum()) == pytest.approx(1 / (2 * k + 1), abs=EXACT64)


def test_rotated_coefficients_are_the_rotated_function() -> None:
    """Values at the grid's points from D(R) x are those of x at the points turned back."""
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    rotation = rotation * rotation.det()
    x = torch.randn(16, dtype=torch.float64)
    to_grid, _ = s2_grid(3, 3, (8, 9), "integral")
    parts = zip(wigner_d(rotation[None], 3), x.split([1, 3, 5, 7]), strict=True)
    turned = torch.cat([block[0] @ part for block, part in parts])
    points = grid_points((8, 9)).reshape(-1, 3) @ rotation
    expected = torch.cat(spherical_harmonics(points, 3), 1) @ x / (4 * pi) ** 0.5
    torch.testing.assert_close((to_grid @ turned).reshape(-1), expected, rtol=0, atol=1e-11)


def test_works_in_training_after_a_first_call_in_inference_mode() -> None:
    with torch.inference_mode():
        s2_grid(1, 1, (12, 7), "component")
    to_grid, _ = s2_grid(1, 1, (12, 7), "component")
    x = torch.ones(4, dtype=torch.float64, requires_grad=True)
    (to_grid @ x).sum().backward()
    assert x.grad is not None


def test_odd_latitudes_are_refused() -> None:
    with pytest.raises(ValueError, match="latitudes must be even"):
        s2_grid(2, 2, (7, 7), "integral")
