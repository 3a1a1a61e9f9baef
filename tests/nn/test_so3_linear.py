"""Linear maps of equivariant features, against e3nn and by their properties."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from denskit.geometry.edge_frame import wigner_d
from denskit.nn.so3_linear import SO3Linear, initialise

from tolerances import EXACT64

CHANNELS_IN, CHANNELS_OUT = (5, 4, 3), (6, 2, 7)


def features(channels: tuple[int, ...] = CHANNELS_IN) -> list[Tensor]:
    return [torch.randn(9, 2 * l + 1, c, dtype=torch.float64) for l, c in enumerate(channels)]


def test_equals_e3nn() -> None:
    """e3nn keeps flat features [N, (channel, m)] and divides by sqrt(fan in) outside its weights."""
    o3 = pytest.importorskip("e3nn.o3")
    irreps = ["+".join(f"{c}x{l}e" for l, c in enumerate(channels)) for channels in (CHANNELS_IN, CHANNELS_OUT)]
    theirs = o3.Linear(*irreps, biases=True).double()
    torch.nn.init.normal_(theirs.bias)
    ours = SO3Linear(CHANNELS_IN, CHANNELS_OUT).double()
    with torch.no_grad():
        blocks = theirs.weight.split([weight.numel() for weight in ours.weights])
        for weight, block in zip(ours.weights, blocks, strict=True):
            weight.copy_(block.reshape(weight.shape) / len(weight) ** 0.5)
        ours.bias.copy_(theirs.bias)
    x = features()
    expected = theirs(torch.cat([x_l.mT.flatten(1) for x_l in x], 1))
    torch.testing.assert_close(torch.cat([y.mT.flatten(1) for y in ours(x)], 1), expected, rtol=0, atol=EXACT64)


def test_equivariant() -> None:
    layer, x = SO3Linear(CHANNELS_IN, CHANNELS_OUT).double(), features()
    torch.nn.init.normal_(layer.bias)
    rotation = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    matrices = wigner_d((rotation * rotation.det())[None], 2)
    turned = layer([matrix @ x_l for matrix, x_l in zip(matrices, x, strict=True)])
    for matrix, y, expected in zip(matrices, layer(x), turned, strict=True):
        torch.testing.assert_close(matrix @ y, expected, rtol=0, atol=EXACT64)


def test_chosen_degrees() -> None:
    layer, x = SO3Linear(CHANNELS_IN, CHANNELS_OUT).double(), features()
    torch.nn.init.normal_(layer.bias)
    every = layer(x)
    (vector,) = layer([x[1]], (1,))
    assert torch.equal(vector, every[1])
    scalar, tensor = layer([x[0], x[2]], (0, 2))
    assert torch.equal(scalar, every[0]) and torch.equal(tensor, every[2])
    assert [y.shape[-1] for y in layer(x[:2])] == [6, 2]


def test_absent_degrees() -> None:
    """Beyond the shorter side, or without channels: no weights, no output."""
    layer = SO3Linear(CHANNELS_IN, (0, 1), bias=False).double()
    assert [tuple(weight.shape) for weight in layer.weights] == [(5, 0), (4, 1)]
    assert [tuple(y.shape) for y in layer(features())] == [(9, 1, 0), (9, 3, 1)]
    assert torch.equal(layer([features()[1] * 0], (1,))[0], torch.zeros(9, 3, 1, dtype=torch.float64))


@pytest.mark.parametrize(("kind", "variance"), [("normal", 1.0), ("uniform", 1 / 3)])
def test_initial_weights(kind: str, variance: float) -> None:
    weight = torch.empty(100, 400)
    initialise(weight, 100, kind)  # type: ignore[arg-type]
    assert weight.var().item() == pytest.approx(variance / 100, rel=0.05)
    assert abs(weight.mean().item()) < 3e-3
    if kind == "uniform":
        assert weight.abs().max().item() <= 0.1
