"""SiLU on sphere grids: in chunks against plain operations, to second order; and what it does to functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from denskit.batch import System
from denskit.data.base import collate
from denskit.models import build_force_field
from denskit.models.equiformer_v2 import EquiformerV2Config
from denskit.models.scaling import Scaling
from denskit.nn import s2_activation
from denskit.nn.fused import KernelName, functions, fused_available
from denskit.nn.s2_activation import GRID_KERNELS, cast_grid, s2_silu

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


@pytest.mark.parametrize("kernels", ["auto", "fused"])
def test_plain_on_a_cpu_whatever_is_set(
    monkeypatch: pytest.MonkeyPatch, systems: dict[str, System], kernels: KernelName
) -> None:
    """The setting of a force field reaches its grids, for the time of a call; on a CPU it changes nothing there."""
    if kernels == "fused" and not fused_available(torch.device("cpu")):
        pytest.skip("numba is not installed: fused kernels are refused")
    sizes = {"l_max": 2, "m_max": 1, "channels": 4, "hidden_channels": 4, "ffn_channels": 4, "grid_resolution": 6}
    config = EquiformerV2Config.model_validate(sizes | {"num_layers": 1, "num_basis": 8, "cutoff": 4.0})
    force_field = build_force_field(config, heads={}, scaling=Scaling(elements=[1, 8])).eval()
    batch = config.with_neighbors(collate([systems["water"]])[0])
    plain = force_field(batch)
    chosen = []
    kept = s2_activation._ChunkedSiLU.apply

    def apply(*inputs: Tensor | None) -> Tensor:
        chosen.append(GRID_KERNELS.get())
        return kept(*inputs)  # type: ignore[no-any-return]

    def never(*inputs: Tensor) -> Tensor:
        raise AssertionError("a kernel of GPUs")

    monkeypatch.setattr(s2_activation._ChunkedSiLU, "apply", apply)
    monkeypatch.setattr(functions, "s2_silu", never)
    force_field.use_kernels(kernels)
    found = force_field(batch)
    assert set(chosen) == {force_field.backbone.kernels} and GRID_KERNELS.get() == "plain"
    assert all(torch.equal(found[name], plain[name]) for name in plain)
