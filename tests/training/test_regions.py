"""Flat graphs cut into regions: the same function, and what repeats is found."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from denskit.training import regions
from denskit.training.recording import traced

LAYERS = 8


@pytest.fixture
def small_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SHORTEST": 8, "USUAL": 8, "LONGEST": 200}.items():
        monkeypatch.setattr(regions, name, value)


def _second_derivatives(layers: int) -> tuple[list[nn.Parameter], regions.Flat]:
    """Gradients of the norm of a gradient, through equal layers that also write in place."""
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(6, 6, dtype=torch.float64) / 3) for _ in range(layers)]

    def function(x: Tensor) -> Sequence[Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = x
            for weight in weights:
                left, right = (y @ weight).tanh().split(3, -1)
                y = torch.cat([left * right, right.exp()], -1).softmax(-1)
            (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            found = torch.autograd.grad(gradient.square().sum(), weights)
        total = torch.zeros(2, dtype=x.dtype)
        total[0] += gradient.detach().sum()
        return [*found, total]

    return weights, function


def test_regions_are_the_graph_and_repeat(small_regions: None) -> None:
    weights, function = _second_derivatives(LAYERS)
    x = torch.randn(4, 6, dtype=torch.float64)
    said: list[str] = []
    run = regions.compiled(traced(function, [x]), [x], said.append, backend="eager")
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(list(run(x)), list(function(x)), rtol=1e-12, atol=1e-12)
            x = torch.randn(4, 6, dtype=torch.float64)
            weights[2] += 0.1  # as an optimizer does
    kinds, calls = (int(word) for word in said[0].split() if word.isdigit())
    assert 4 < kinds < calls / 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_regions_are_the_graph() -> None:
    def function(x: Tensor) -> Sequence[Tensor]:
        return [(x.sin() * x).sum(0)]

    x = torch.randn(4, 6, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # not compiled
        run = regions.compiled(traced(function, [x]), [x], print)
    torch.testing.assert_close(run(x)[0], function(x)[0], rtol=1e-12, atol=1e-12)


def test_without_a_compiler_the_graph_runs_as_it_is() -> None:
    _, function = _second_derivatives(1)
    x = torch.randn(4, 6, dtype=torch.float64)
    flat = traced(function, [x])

    def missing(*_: object) -> None:
        raise OSError("no compiler found")

    with pytest.warns(UserWarning, match="not compiled, and so slower: BackendCompilerFailed"):
        run = regions.compiled(flat, [x], print, backend=missing)
    assert run is flat


def test_what_looks_at_values_cannot_be_traced() -> None:
    with pytest.raises(RuntimeError, match="data-dependent"):
        traced(lambda x: [x if x.sum() > 0 else -x], [torch.ones(3)])
