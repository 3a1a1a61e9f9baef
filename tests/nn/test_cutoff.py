"""Cutoff functions: their values, and their derivatives by autograd and by finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from denskit.nn.cutoff import CosineCutoff, PolynomialEnvelope

from tolerances import EXACT64, FINITE_DIFFERENCE64

CUTOFF = 5.0


def derivatives(function: nn.Module, distance: Tensor) -> list[Tensor]:
    """Value, first and second derivative by autograd."""
    distance = distance.clone().requires_grad_()
    values = [function(distance)]
    for _ in range(2):
        (slope,) = torch.autograd.grad(values[-1].sum(), distance, create_graph=True)
        values.append(slope)
    return [value.detach() for value in values]


@pytest.mark.parametrize("exponent", [5, 6])
def test_envelope_is_the_published_polynomial(exponent: int) -> None:
    p, d = exponent, torch.linspace(0, CUTOFF, 101, dtype=torch.float64)
    x = d / CUTOFF
    published = 1 - (p + 1) * (p + 2) / 2 * x**p + p * (p + 2) * x ** (p + 1) - p * (p + 1) / 2 * x ** (p + 2)
    torch.testing.assert_close(PolynomialEnvelope(CUTOFF, exponent)(d), published, rtol=0, atol=EXACT64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [5, 6])
def test_envelope_ends_smoothly(exponent: int, dtype: torch.dtype) -> None:
    """1 at 0; value, slope and curvature exactly 0 at the cutoff and beyond; approached as (1 - x)^3 from inside."""
    envelope = PolynomialEnvelope(CUTOFF, exponent)
    value, slope, curvature = derivatives(envelope, torch.tensor([0.0, CUTOFF, CUTOFF + 1e-3, 2 * CUTOFF], dtype=dtype))
    assert value.tolist() == [1, 0, 0, 0]
    assert slope.tolist() == [0, 0, 0, 0]
    assert curvature.tolist() == [0, 0, 0, 0]
    inside = torch.tensor([CUTOFF - 1e-3], dtype=dtype)
    leading = exponent * (exponent + 1) * (exponent + 2) / 6 * ((CUTOFF - inside) / CUTOFF) ** 3
    torch.testing.assert_close(envelope(inside), leading, rtol=2e-3, atol=0)


def test_envelope_falls_monotonically() -> None:
    distance = torch.linspace(0, CUTOFF, 2001, dtype=torch.float64)
    value = PolynomialEnvelope(CUTOFF)(distance)
    assert bool((value >= 0).all()) and bool((value.diff() <= EXACT64).all())


@pytest.mark.parametrize("function", [CosineCutoff(CUTOFF), PolynomialEnvelope(CUTOFF)])
def test_derivatives_by_finite_differences(function: nn.Module) -> None:
    distance = torch.tensor([0.3, 1.7, 2.5, 4.2, 4.9], dtype=torch.float64)
    step = 1e-4
    low, middle, high = (derivatives(function, distance + shift) for shift in (-step, 0.0, step))
    for order in (0, 1):
        numeric = (high[order] - low[order]) / (2 * step)
        torch.testing.assert_close(numeric, middle[order + 1], rtol=0, atol=FINITE_DIFFERENCE64)


def test_cosine() -> None:
    distance = torch.tensor([0.0, CUTOFF / 3, CUTOFF / 2, CUTOFF, 1.5 * CUTOFF, 2 * CUTOFF], dtype=torch.float64)
    value, slope, curvature = derivatives(CosineCutoff(CUTOFF), distance)
    expected = torch.tensor([1.0, 0.75, 0.5, 0.0, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(value, expected, rtol=0, atol=EXACT64)
    assert value[3:].tolist() == slope[3:].tolist() == curvature[3:].tolist() == [0, 0, 0]
    # Its weakness, and why the envelope exists: the curvature does not vanish where the function ends.
    inside = derivatives(CosineCutoff(CUTOFF), torch.tensor([CUTOFF * (1 - 1e-9)], dtype=torch.float64))
    assert abs(inside[2].item() - 0.5 * (math.pi / CUTOFF) ** 2) < 1e-6
