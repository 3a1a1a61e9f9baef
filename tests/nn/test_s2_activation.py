"""SiLU on sphere grids: in chunks against plain operations, to second order; and what it does to functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from denskit.nn import s2_activation
from denskit.nn.s2_activation import cast_grid, s2_silu

from tolerances import EXACT64


def grid(by_order: bool = False) -> tuple[Tensor, Tensor]:
    return cast_grid(2, 1, (6, 6), "component", by_order, torch.float64, torch.device("cpu"))


def inputs(mixes: bool) -> tuple[Tensor, Tensor | None]:
    x = torch.randn(7, 7, 3, dtype=torch.float64, requires_grad=True)
    return x, torch.randn(3, 3, dtype=torch.float64, requires_grad=True) if mixes else None


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("values", [1, 300, 10**6])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, values: int, mixes: bool) -> None:
    monkeypatch.setattr(s2_activation, "VALUES", {"cpu": values, "cuda": values})
    (to_grid, from_grid), (x, weight) = grid(), inputs(mixes)
    from_grid = from_grid[1:]
    chunked = s2_silu(x, to_grid, from_grid, weight)
    points = F.silu(to_grid @ x)
    plain = from_grid @ (points if weight is None else F.silu(points @ weight.T))
    torch.testing.assert_close(chunked, plain, rtol=0, atol=EXACT64 * 10)
    wanted = [x] if weight is None else [x, weight]
    factor = torch.randn_like(plain)
    for a, b in zip(*(torch.autograd.grad((y * factor).sum(), wanted) for y in (chunked, plain)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=EXACT64 * 100)


@pytest.mark.parametrize("mixes", [False, True])
def test_second_derivatives(mixes: bool) -> None:
    """Forces by gradient are trained through them."""
    (to_grid, from_grid), (x, weight) = grid(), inputs(mixes)
    wanted = [x] if weight is None else [x, weight]
    small = [t.detach()[:2].clone().requires_grad_() if t is x else t for t in wanted]
    assert torch.autograd.gradgradcheck(lambda *given: s2_silu(given[0], to_grid, from_grid, *given[1:]), small)


def test_constant_functions_stay_constant() -> None:
    """A scalar alone is the same at all points, so that its SiLU comes back."""
    to_grid, from_grid = grid()
    x = torch.zeros(2, 7, 3, dtype=torch.float64)
    x[:, 0] = torch.randn(2, 3, dtype=torch.float64)
    value = to_grid[0, 0] * x[:, 0]
    out = s2_silu(x, to_grid, from_grid)
    torch.testing.assert_close(out[:, 0], F.silu(value) / to_grid[0, 0], rtol=0, atol=EXACT64 * 10)
    assert float(out[:, 1:].abs().max()) < EXACT64 * 10


def test_rows_by_order_are_the_same_rows() -> None:
    (plain, back), (ordered, back_ordered) = grid(), grid(by_order=True)
    rows = [0, 2, 5, 3, 6, 1, 4]  # m = 0: l = 0, 1, 2; then +1: l = 1, 2; then -1
    assert torch.equal(ordered, plain[:, rows]) and torch.equal(back_ordered, back[rows])
