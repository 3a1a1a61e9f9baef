"""Activations and the gate, against their formulas and e3nn's gate."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from denskit.nn.activation import (
    SIGMOID_FACTOR,
    SILU_FACTOR,
    SMOOTH_LEAKY_RELU_FACTOR,
    gate,
    scaled_sigmoid,
    scaled_silu,
    smooth_leaky_relu,
)

from tolerances import EXACT64

MONTE_CARLO = 2e-3  # relative: what a million samples of the normal distribution leave


@pytest.mark.parametrize("activation", [scaled_silu, scaled_sigmoid, smooth_leaky_relu])
def test_second_moment_is_nearly_one(activation: Callable[[Tensor], Tensor]) -> None:
    x = torch.linspace(-12, 12, 20001, dtype=torch.float64)
    density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    assert torch.trapezoid(density * activation(x) ** 2, x).item() == pytest.approx(1.0, rel=2 * MONTE_CARLO)


def test_formulas() -> None:
    x = torch.linspace(-30, 30, 101, dtype=torch.float64)
    sigmoid = 1 / (1 + torch.exp(-x))
    torch.testing.assert_close(scaled_silu(x), SILU_FACTOR * x * sigmoid, rtol=EXACT64, atol=EXACT64)
    torch.testing.assert_close(scaled_sigmoid(x), SIGMOID_FACTOR * sigmoid, rtol=EXACT64, atol=EXACT64)
    # a line of slope 0.2 on the left that bends smoothly into one of slope 1
    expected = SMOOTH_LEAKY_RELU_FACTOR * (0.2 * x + 0.8 * x * sigmoid)
    torch.testing.assert_close(smooth_leaky_relu(x), expected, rtol=EXACT64, atol=EXACT64)


def test_factors_are_those_of_published_weights() -> None:
    factors = (SILU_FACTOR, SIGMOID_FACTOR, SMOOTH_LEAKY_RELU_FACTOR)
    assert factors == (1.6791767923989418, 1.8467055342154763, 1.531320475574866)


def test_gate_equals_e3nn_up_to_the_factors() -> None:
    e3nn_nn = pytest.importorskip("e3nn.nn")
    theirs = e3nn_nn.Gate("5x0e", [torch.nn.functional.silu], "5x0e", [torch.sigmoid], "3x1e+2x2e")
    x = [torch.randn(7, 2 * l + 1, c) for l, c in enumerate((10, 3, 2))]
    expected = theirs(torch.cat([x_l.mT.flatten(1) for x_l in x], 1))
    scalars, vectors, tensors = gate(x, 5)
    silu, sigmoid = (e3nn_nn.Activation("1x0e", [act]).acts[0].cst for act in (torch.nn.functional.silu, torch.sigmoid))
    ours = [scalars * silu / SILU_FACTOR, *(part * sigmoid / SIGMOID_FACTOR for part in (vectors, tensors))]
    torch.testing.assert_close(torch.cat([y.mT.flatten(1) for y in ours], 1), expected)


def test_gates_of_absent_degrees_are_ignored() -> None:
    x = [torch.randn(4, 2 * l + 1, c) for l, c in enumerate((9, 3, 2))]
    every = gate(x, 4)
    assert [part.shape[-1] for part in every] == [4, 3, 2]
    for few, part in zip(gate(x[:2], 4), every[:2], strict=True):
        assert torch.equal(few, part)
    assert len(gate(x[:1], 4)) == 1
