"""Radial bases against the published implementation's stored values, written-out formulas, and at tiny distances."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from denskit.nn.covalent_origins import RADII, CovalentOrigins
from denskit.nn.radial import (
    RADIAL_BASES,
    BesselBasis,
    ExponentialNormalBasis,
    GaussianBasis,
    GaussianSmearing,
)

from tolerances import EXACT64

CUTOFF = 5.0
PUBLISHED = {"means": ExponentialNormalBasis, "mean": GaussianBasis, "rbf.frequencies": BesselBasis}
ALL = [*RADIAL_BASES.values(), GaussianSmearing]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def published_cases(reference_dir: Path) -> list[Path]:
    """Every stored Equiformer case that holds its radial features."""
    return [path for path in sorted(reference_dir.glob("v1_*.npz")) if "caseA/mid/rbf" in np.load(path).files]


def test_equals_published(reference_dir: Path) -> None:
    seen = set()
    for path in published_cases(reference_dir):
        case = np.load(path, allow_pickle=False)
        weights = {key.removeprefix("param/rbf."): case[key] for key in case.files if key.startswith("param/rbf.")}
        cls = next(PUBLISHED[name] for name in PUBLISHED if name in weights)
        expected = case["caseA/mid/rbf"]
        basis = cls(expected.shape[1], CUTOFF)
        basis.load_state_dict({key.removeprefix("rbf."): torch.from_numpy(value) for key, value in weights.items()})
        source, target = case["caseA/mid/edge_src_dst"]
        distance = np.linalg.norm(case["in/pos_clean"][source] - case["in/pos_clean"][target], axis=1)
        values = basis(torch.from_numpy(distance)).detach().numpy()
        np.testing.assert_allclose(values, expected, rtol=0, atol=EXACT64 * np.abs(expected).max(), err_msg=path.name)
        seen.add(cls)
    assert {ExponentialNormalBasis, GaussianBasis} <= seen


def test_origins_move_the_functions_to_the_distances_of_large_atoms() -> None:
    basis = ExponentialNormalBasis(8, CUTOFF)
    numbers = torch.tensor([1, 6, 29, 29, 118])
    origin = CovalentOrigins(119)(numbers, torch.tensor([[0, 2, 1, 3, 4], [1, 3, 2, 1, 2]]))
    copper = 2 * 1.12 - 1.07
    expected = [0.0, copper, 0.75 + 1.12 - 1.07, 0.75 + 1.12 - 1.07, 1.57 + 1.12 - 1.07]
    assert len(RADII) == 118
    torch.testing.assert_close(origin, torch.tensor(expected), rtol=0, atol=1e-6)  # Å
    distance = torch.linspace(0.1, 3.4, 5)
    of_hydrogen = basis(distance) / basis.cutoff_function(distance)[:, None]
    moved = basis(distance + copper, torch.full_like(distance, copper))
    torch.testing.assert_close(moved / basis.cutoff_function(distance + copper)[:, None], of_hydrogen)


def test_exponential_normal_starts_as_published(reference_dir: Path) -> None:
    """Buffers of the constructor equal the stored ones."""
    case = np.load(reference_dir / "v1_dens_L2.npz", allow_pickle=False)
    basis = ExponentialNormalBasis(len(case["param/rbf.means"]), CUTOFF)
    np.testing.assert_allclose(basis.means.numpy(), case["param/rbf.means"], rtol=EXACT64)
    np.testing.assert_allclose(basis.betas.numpy(), case["param/rbf.betas"], rtol=EXACT64)
    assert not list(basis.parameters())


def test_bessel_by_hand() -> None:
    distance = torch.tensor([0.2, 1.0, 2.5, 4.9, 5.0, 6.0])
    basis = BesselBasis(4, CUTOFF)
    x = distance / CUTOFF
    envelope = torch.where(x < 1, 1 - 21 * x**5 + 35 * x**6 - 15 * x**7, 0.0)
    for k in range(4):
        expected = math.sqrt(2 / CUTOFF**3) * envelope * torch.sin((k + 1) * math.pi * x) / x
        torch.testing.assert_close(basis(distance)[:, k], expected, rtol=0, atol=EXACT64)
    assert basis.frequencies.requires_grad


def test_smearing_by_hand() -> None:
    basis = GaussianSmearing(600, 12.0)
    spacing = 12.0 / 599
    expected = math.exp(-0.5 * ((3.0 - 100 * spacing) / (2 * spacing)) ** 2)
    assert basis(torch.tensor([3.0]))[0, 100].item() == pytest.approx(expected, rel=1e-9)


def test_smearing_grid_is_the_published_one(reference_dir: Path) -> None:
    cases = [np.load(path, allow_pickle=False) for path in sorted(reference_dir.glob("*.npz"))]
    grids = [case["param/distance_expansion.offset"] for case in cases if "param/distance_expansion.offset" in case]
    assert grids
    for grid in grids:
        np.testing.assert_allclose(GaussianSmearing(len(grid), float(grid[-1])).offset.numpy(), grid, rtol=EXACT64)


def second_derivatives(basis: nn.Module, distance: Tensor) -> list[Tensor]:
    """Value [E, K], and by autograd the first and second derivatives of a fixed combination of the features [E]."""
    distance = distance.clone().requires_grad_()
    value = basis(distance)
    mixture = value @ torch.linspace(0.5, 1.0, value.shape[1], dtype=value.dtype)
    (slope,) = torch.autograd.grad(mixture.sum(), distance, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), distance, create_graph=True)
    curvature.sum().backward()
    return [value.detach(), slope.detach(), curvature.detach()]


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_from_zero_on(cls: type[nn.Module], dtype: torch.dtype) -> None:
    basis = cls(16, CUTOFF).to(dtype)
    distance = torch.tensor([0.0, 1e-30, 1e-12, 1e-6, 1e-4, 0.03, 1.0, CUTOFF, 2 * CUTOFF], dtype=dtype)
    for value in second_derivatives(basis, distance):
        assert bool(value.isfinite().all())
    for parameter in basis.parameters():
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all())


@pytest.mark.parametrize("cls", ALL)
def test_derivatives_by_finite_differences(cls: type[nn.Module]) -> None:
    """Also across the place where the Bessel quotient turns into its series (w x = 0.1)."""
    basis = cls(16, CUTOFF)
    distance = torch.tensor([1e-5, 0.01, 0.5 / math.pi, 0.25 / math.pi, 0.9, 2.3, 4.4])
    step = 1e-5
    _, slope, curvature = second_derivatives(basis, distance)
    low, high = (second_derivatives(basis, distance + shift) for shift in (-step, step))
    weights = torch.linspace(0.5, 1.0, 16)
    numeric_slope = (high[0] - low[0]) @ weights / (2 * step)
    numeric_curvature = (high[1] - low[1]) / (2 * step)
    torch.testing.assert_close(numeric_slope, slope, rtol=1e-6, atol=1e-6 * slope.abs().max().item())
    torch.testing.assert_close(numeric_curvature, curvature, rtol=1e-6, atol=1e-6 * curvature.abs().max().item())


@pytest.mark.parametrize("cls", [ExponentialNormalBasis, BesselBasis])
def test_vanishes_beyond_the_cutoff(cls: type[nn.Module]) -> None:
    basis = cls(8, CUTOFF)
    assert not bool(basis(torch.tensor([CUTOFF, CUTOFF + 1e-6, 9.0])).any())
    assert bool(basis(torch.tensor([CUTOFF - 0.1])).any())
