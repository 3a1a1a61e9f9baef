"""The Triton kernels of sphere grids against plain PyTorch; test_triton.py runs this file too."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from denskit.batch import Batch, System
from denskit.data.base import collate
from denskit.models import ForceField, build_force_field
from denskit.models.equiformer_v2 import EquiformerV2Config
from denskit.models.escn import ESCNConfig
from denskit.models.scaling import Scaling
from denskit.nn import s2_activation
from denskit.nn.fused import functions, triton_s2
from denskit.nn.s2_activation import cast_grid, grid_kernels, s2_silu
from triton_checks import DEVICE, check, normal

from tolerances import ORACLE64

SMALL = {
    "cutoff": 4.0, "max_neighbors": None, "num_layers": 2, "l_max": 2, "m_max": 1, "channels": 4, "hidden_channels": 3,
    "edge_channels": 8, "num_basis": 16,
}  # fmt: skip
EQUIFORMER_V2 = SMALL | {
    "num_heads": 2, "alpha_channels": 4, "value_channels": 2, "ffn_channels": 5, "attention_dropout": 0.0,
    "stochastic_depth": 0.0, "grid_mlp": False, "grid_resolution": 6,
}  # fmt: skip


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's tensors are a processor's."""
    monkeypatch.setattr(s2_activation, "FUSED_DEVICES", {DEVICE.type})


def check_s2(to_grid: Tensor, from_grid: Tensor, rows: int, channels: int, dtype: torch.dtype) -> None:
    of = [matrix.to(dtype) for matrix in (to_grid, from_grid)]
    check(
        dtype,
        [2 * normal(rows, to_grid.shape[1], channels)],
        lambda x: [s2_silu(x[0], to_grid, from_grid)],
        lambda x: [triton_s2.s2_forward(*of, x[0])],
        lambda x, g: [triton_s2.s2_backward(*of, x[0], g[0])],
        lambda x, g, h: list(triton_s2.s2_double_backward(*of, x[0], g[0], h[0])),
    )


SIZES = [
    (1, 1, (4, 3), 1, 1),
    (2, 1, (6, 6), 5, 3),
    (3, 2, (8, 8), 4, 16),
    (6, 2, (14, 5), 3, 50),  # eSCN's messages
    (6, 2, (18, 18), 2, 64),  # EquiformerV2's messages
    (6, 6, (14, 15), 1, 70),
]


@pytest.mark.parametrize(("l_max", "m_max", "resolution", "rows", "channels"), SIZES)
def test_s2(l_max: int, m_max: int, resolution: tuple[int, int], rows: int, channels: int) -> None:
    grids = cast_grid(l_max, m_max, resolution, "component", True, torch.float64, DEVICE)
    check_s2(*grids, rows, channels, torch.float64)


@pytest.mark.parametrize(("l_max", "m_max", "resolution", "rows", "channels"), SIZES[1::3])
def test_s2_single_precision(l_max: int, m_max: int, resolution: tuple[int, int], rows: int, channels: int) -> None:
    """Without the scalars that come back, as in separable activations."""
    to_grid, from_grid = cast_grid(l_max, m_max, resolution, "component", True, torch.float64, DEVICE)
    check_s2(to_grid, from_grid[1:], rows, channels, torch.float32)


def test_s2_without_rows() -> None:
    check_s2(normal(36, 7), normal(6, 36), 0, 4, torch.float64)


def test_s2_any_matrices() -> None:
    """More coefficients come out than go in, points that are no multiple of 16."""
    check_s2(normal(37, 5), normal(40, 37), 3, 9, torch.float64)


def test_s2_far_from_zero() -> None:
    """Where the exponential is infinite or zero, all derivatives are finite."""
    x = torch.tensor([-800.0, 800.0, -100.0, 0.0], device=DEVICE).view(1, 1, 4)
    to_grid, from_grid = torch.ones(16, 1, device=DEVICE), torch.full((1, 16), 1 / 16, device=DEVICE)
    out = triton_s2.s2_forward(to_grid, from_grid, x)
    torch.testing.assert_close(out, torch.nn.functional.silu(x))
    ones = torch.ones_like(x)
    second = triton_s2.s2_double_backward(to_grid, from_grid, x, ones, ones)
    assert all(torch.isfinite(t).all() for t in (triton_s2.s2_backward(to_grid, from_grid, x, ones), *second))


def test_s2_strided_inputs() -> None:
    """Slices and transposed tensors are read as what they are."""
    to_grid, from_grid = normal(7, 36).T, normal(36, 9).T[2:]
    x, grad = normal(5, 4, 7).mT, normal(3, 7, 8)[:, :, ::2]
    found = triton_s2.s2_backward(to_grid, from_grid, x[:3], grad)
    x = x[:3].clone().requires_grad_()
    (wanted,) = torch.autograd.grad(s2_silu(x, to_grid, from_grid), x, grad)
    torch.testing.assert_close(found, wanted, rtol=ORACLE64, atol=ORACLE64)


def test_s2_operators() -> None:
    """Schemas and the shapes that tracing and compilation see."""
    to_grid, from_grid = normal(36, 7), normal(6, 36)
    inputs, grads = [normal(2, 7, 3)], [normal(2, 6, 3)]
    given = {"": (inputs,), "_backward": (inputs, grads), "_double_backward": (inputs, grads, inputs)}
    for name, tensors in given.items():
        operator = getattr(torch.ops.denskit, f"s2_activation{name}").default
        arguments = (to_grid, from_grid, *tensors)
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


@dataclass
class Calls:
    """Numbers of coefficients that go through the kernels."""

    sizes: list[int] = field(default_factory=list)

    def s2_silu(self, x: Tensor, to_grid: Tensor, from_grid: Tensor) -> Tensor:
        self.sizes.append(x.shape[1])
        return kernel(x, to_grid, from_grid)


kernel = functions.s2_silu


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    monkeypatch.setattr(functions, "s2_silu", calls.s2_silu)
    return calls


def test_s2_is_chosen(calls: Calls) -> None:
    """One SiLU in full precision, where fused kernels are set; all else is plain."""
    to_grid, from_grid, x = normal(36, 7), normal(6, 36), normal(2, 7, 3)
    plain = s2_silu(x, to_grid, from_grid)
    with grid_kernels("fused"):
        s2_silu(x, to_grid, from_grid, normal(3, 3))
        with torch.autocast(DEVICE.type, torch.bfloat16):
            s2_silu(x.float(), to_grid.float(), from_grid.float())
        assert calls.sizes == []
        fused = s2_silu(x, to_grid, from_grid)
    assert calls.sizes == [7]
    torch.testing.assert_close(fused, plain, rtol=ORACLE64, atol=ORACLE64)


def model(config: EquiformerV2Config | ESCNConfig) -> ForceField:
    """In training mode, with weights that are not near zero."""
    force_field = build_force_field(config, heads={}, scaling=Scaling(elements=[1, 8])).double()
    with torch.no_grad():
        for parameter in force_field.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return force_field.to(DEVICE)


def water(force_field: ForceField) -> Batch:
    system = System(
        positions=np.array([[0.0, 0.0, 0.0], [0.9, 0.2, 0.3], [-0.5, 0.7, 0.4]]), atomic_numbers=np.array([8, 1, 1]),
        cell=np.zeros((3, 3)), pbc=np.zeros(3, dtype=bool), fixed=np.zeros(3, dtype=bool), tags=np.zeros(3, dtype=int),
    )  # fmt: skip
    batch, _ = collate([system], torch.float64)
    return force_field.config.with_neighbors(batch).to(DEVICE)


def outputs(force_field: ForceField, batch: Batch) -> list[Tensor]:
    """Energy, forces, and the gradients of a loss on both."""
    found = force_field(batch)
    loss = found["energy"].square().sum() + found["forces"].square().sum()
    grads = torch.autograd.grad(loss, list(force_field.parameters()), allow_unused=True)
    return [found["energy"].detach(), found["forces"].detach(), *(g for g in grads if g is not None)]


MESSAGE, ATOM = 7, 9  # coefficients of orders up to 1, and of all orders


@pytest.mark.parametrize(
    ("config", "settings", "wanted"),
    [
        (EquiformerV2Config.model_validate(EQUIFORMER_V2 | {"forces": "gradient"}), {}, {MESSAGE, ATOM}),
        (EquiformerV2Config.model_validate(EQUIFORMER_V2 | {"grid_mlp": True}), {}, {MESSAGE}),
        (EquiformerV2Config.model_validate(EQUIFORMER_V2), {"checkpoint_activations": True}, {MESSAGE, ATOM}),
        (EquiformerV2Config.model_validate(EQUIFORMER_V2), {"edge_chunk": 2}, {MESSAGE, ATOM}),
        (ESCNConfig.model_validate(SMALL), {}, {MESSAGE}),
    ],
    ids=["gradient forces", "grid_mlp", "checkpoint_activations", "edge_chunk", "eSCN"],
)
def test_s2_in_models(
    calls: Calls,
    config: EquiformerV2Config | ESCNConfig,
    settings: dict[str, object],
    wanted: set[int],
) -> None:
    """The setting reaches what it should, also where derivatives compute layers again; the numbers stay."""
    force_field = model(config)
    for name, value in settings.items():
        setattr(force_field.backbone, name, value)
    batch = water(force_field)
    plain = outputs(force_field, batch)
    assert not calls.sizes
    force_field.backbone.kernels = "fused"
    forward = force_field(batch)
    before = len(calls.sizes)
    assert set(calls.sizes) == wanted and forward["energy"].isfinite().all()
    fused = outputs(force_field, batch)
    assert len(calls.sizes) > 2 * before if settings else len(calls.sizes) == 2 * before
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=ORACLE64 * max(float(b.abs().max()), 1.0))
