"""Products of functions on the sphere: in chunks against plain operations, to third order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from denskit.nn import s2_activation
from denskit.nn.s2_activation import cast_grid
from denskit.nn.s2_product import s2_product

from tolerances import EXACT64

TO_GRID, FROM_GRID = cast_grid(2, 1, (8, 4), "component", False, torch.float64, torch.device("cpu"))


def plain(x: Tensor) -> Tensor:
    first, second = (TO_GRID @ x).chunk(2, -1)
    return FROM_GRID @ (first * second)


@pytest.mark.parametrize("values", [1, 300, 10**6])
def test_chunks_change_no_derivative(monkeypatch: pytest.MonkeyPatch, values: int) -> None:
    """Values, gradient, and the gradient of a function of both, which trains forces by gradient."""
    monkeypatch.setattr(s2_activation, "VALUES", {"cpu": values, "cuda": values})
    x = torch.randn(7, 7, 6, dtype=torch.float64, requires_grad=True)
    factor = torch.randn(7, 7, 3, dtype=torch.float64)
    found: list[list[Tensor]] = []
    for product in (lambda x: s2_product(x, TO_GRID, FROM_GRID), plain):
        out = product(x)
        (gradient,) = torch.autograd.grad((out.square() * factor).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((gradient**3).sum() + out.sum(), x)
        found.append([out, gradient, second])
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=EXACT64 * 100 * float(expected.detach().abs().max()))


def test_derivatives_of_any_order() -> None:
    x = torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: s2_product(x, TO_GRID, FROM_GRID), x)
    (gradient,) = torch.autograd.grad(s2_product(x, TO_GRID, FROM_GRID).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), x, create_graph=True)
    (third,) = torch.autograd.grad(second.square().sum(), x)
    (expected,) = torch.autograd.grad(plain(x).pow(3).sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(expected.square().sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(expected.square().sum(), x)
    torch.testing.assert_close(third, expected, rtol=EXACT64 * 1e4, atol=EXACT64 * 1e4)
