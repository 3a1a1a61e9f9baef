"""Layers on packed features against their definitions, degree by degree."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from denskit.geometry.edge_frame import wigner_d
from denskit.nn.packed import EPS, PACKED_NORMS, PackedLinear, PackedNorm, PackedNormName

from tolerances import EXACT64

L_MAX, CHANNELS = 3, 6
NAMES = list(PACKED_NORMS)


def features() -> Tensor:
    return torch.randn(5, (L_MAX + 1) ** 2, CHANNELS, dtype=torch.float64) + 0.3


def norm_of(name: PackedNormName) -> PackedNorm:
    norm = PACKED_NORMS[name](L_MAX, CHANNELS).double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += torch.randn_like(parameter)
    return norm


def degree(x: Tensor, l: int) -> Tensor:
    return x[:, l * l : (l + 1) ** 2]


@pytest.mark.parametrize("name", NAMES)
def test_scales_are_as_defined(name: PackedNormName) -> None:
    """Root mean squares over orders and channels; where degrees share one, each counts alike."""
    x, norm = features(), norm_of(name)
    out = norm(x)
    x = x.clone()
    x[:, 0] -= x[:, 0].mean(-1, keepdim=True)
    squares = [degree(x, l).square().mean((1, 2)) for l in range(L_MAX + 1)]
    groups = {
        "layer_norm": [[0], [1], [2], [3]],
        "separable_layer_norm": [[0], [1, 2, 3]],
        "rms_norm": [[0, 1, 2, 3]],
    }[name]
    for group in groups:
        scale = (sum(squares[l] for l in group) / len(group) + EPS).rsqrt()
        for l in group:
            expected = degree(x, l) * scale[:, None, None] * norm.weight[l] + (norm.bias if l == 0 else 0)
            torch.testing.assert_close(degree(out, l), expected, rtol=0, atol=EXACT64 * 10)


@pytest.mark.parametrize("name", NAMES)
def test_norms_commute_with_rotations(name: PackedNormName) -> None:
    rotation = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    turn = torch.block_diag(*(block[0] for block in wigner_d((rotation * rotation.det())[None], L_MAX)))
    x, norm = features(), norm_of(name)
    torch.testing.assert_close(norm(turn @ x), turn @ norm(x), rtol=0, atol=1e-11)


def test_scalars_alone_are_enough_where_degrees_do_not_mix() -> None:
    x = features()
    for name in NAMES:
        norm = norm_of(name)
        same = torch.allclose(norm(x[:, :1]), norm(x)[:, :1])
        assert same is (name != "rms_norm")


def test_zero_features_stay_finite() -> None:
    for name in NAMES:
        x = torch.zeros(2, (L_MAX + 1) ** 2, CHANNELS, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(norm_of(name)(x).square().sum(), x)
        assert bool(gradient.isfinite().all())


def test_linear_acts_on_each_degree() -> None:
    layer = PackedLinear(L_MAX, CHANNELS, 4, "normal").double()
    torch.nn.init.normal_(layer.bias)
    x = features()
    out = layer(x)
    for l in range(L_MAX + 1):
        expected = degree(x, l) @ layer.weight[l].T + (layer.bias if l == 0 else 0)
        torch.testing.assert_close(degree(out, l), expected, rtol=0, atol=EXACT64 * 10)
    assert torch.equal(layer(degree(x, 1), (1,)), degree(out, 1))
