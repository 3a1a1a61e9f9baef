"""Equivariant layer normalisation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from denskit.geometry.edge_frame import wigner_d
from denskit.models.equiformer.norm import EPS, EquivariantLayerNorm, MergedLayerNorm, NoNorm

from tolerances import EXACT64

CHANNELS = (5, 4, 3)


def features(size: float = 1.0) -> list[Tensor]:
    return [size * torch.randn(6, 2 * l + 1, c, dtype=torch.float64) for l, c in enumerate(CHANNELS)]


def random_norm() -> EquivariantLayerNorm:
    norm = EquivariantLayerNorm(CHANNELS).double()
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    return norm


def test_scalars_as_the_ordinary_layer_norm() -> None:
    norm, x = random_norm(), features()
    expected = torch.nn.functional.layer_norm(x[0], CHANNELS[:1], norm.weights[0], norm.bias, 1e-5)
    torch.testing.assert_close(norm(x)[0], expected, rtol=0, atol=EXACT64)


def test_each_degree_gets_unit_mean_square() -> None:
    """Over channels and orders together; atom by atom, degree by degree."""
    x = features(size=100.0)
    for l, part in enumerate(EquivariantLayerNorm(CHANNELS).double()(x)):
        torch.testing.assert_close(part.square().mean((1, 2)), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-7)
        if l > 0:  # vectors are not centred: that would not be equivariant
            torch.testing.assert_close(part / part[:, :1, :1], x[l] / x[l][:, :1, :1])


def test_equivariant() -> None:
    norm, x = random_norm(), features()
    rotation = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    matrices = wigner_d((rotation * rotation.det())[None], 2)
    turned = norm([matrix @ x_l for matrix, x_l in zip(matrices, x, strict=True)])
    for matrix, y, expected in zip(matrices, norm(x), turned, strict=True):
        torch.testing.assert_close(matrix @ y, expected, rtol=0, atol=EXACT64)


def test_zero_features_are_finite_to_the_second_derivative() -> None:
    """Atoms without neighbours have zero vectors."""
    x = [torch.zeros(2, 2 * l + 1, c, dtype=torch.float64, requires_grad=True) for l, c in enumerate(CHANNELS)]
    total = torch.stack([(y * torch.randn_like(y)).sum() for y in random_norm()(x)]).sum()
    first = torch.autograd.grad(total, x, create_graph=True)
    second = torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), x)
    assert all(bool(g.isfinite().all()) for g in (*first, *second))


def test_fewer_degrees() -> None:
    norm, x = random_norm(), features()
    assert torch.equal(norm(x[:1])[0], norm(x)[0])
    assert len(norm(x[:1])) == 1


def test_no_norm_changes_nothing() -> None:
    x = features()
    assert all(a is b for a, b in zip(NoNorm()(x), x, strict=True))
    assert not list(NoNorm().parameters())


@pytest.mark.parametrize("apart", [False, True])
def test_merged_norm_has_one_scale_in_which_degrees_weigh_alike(apart: bool) -> None:
    x = [torch.randn(5, 2 * l + 1, channels, dtype=torch.float64) for l, channels in enumerate((6, 4, 2))]
    norm = MergedLayerNorm([6, 4, 2], scalars_apart=apart).double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn_like(parameter))
    out = norm(x)
    for atom in range(5):
        centred = [x[0][atom] - x[0][atom].mean(), x[1][atom], x[2][atom]]
        squares = [float((part**2).sum()) / part.numel() for part in centred]
        merged = (sum(squares) / 3 + EPS) ** 0.5
        scales = [(squares[0] + EPS) ** 0.5 if apart else merged, merged, merged]
        for l, (part, scale, weight) in enumerate(zip(centred, scales, norm.weights, strict=True)):
            expected = part / scale * weight + (norm.bias if l == 0 else 0)
            torch.testing.assert_close(out[l][atom], expected, rtol=EXACT64, atol=EXACT64)
    if apart:  # scalars alone are those of all degrees
        torch.testing.assert_close(norm(x[:1])[0], out[0], rtol=EXACT64, atol=EXACT64)
