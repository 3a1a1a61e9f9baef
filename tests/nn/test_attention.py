"""Softmax over the edges of an atom: plain, with padding, and with an envelope."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from denskit.nn.attention import edge_softmax

from tolerances import EXACT64

TARGET = torch.tensor([0, 0, 0, 2, 2, 3])  # atom 1 has no edge
ATOMS = 4


def random_logits() -> Tensor:
    return 3.0 * torch.randn(len(TARGET), 2, dtype=torch.float64)


def softmax_by_atom(logits: Tensor) -> Tensor:
    return torch.cat([torch.softmax(logits[atom == TARGET], 0) for atom in (0, 2, 3)])


def test_plain() -> None:
    logits = random_logits()
    for shift in (0.0, 1000.0, -1000.0):  # no overflow
        weights = edge_softmax(logits + shift, TARGET, ATOMS, None, smooth=False)
        torch.testing.assert_close(weights, softmax_by_atom(logits), rtol=0, atol=EXACT64)


def test_weights_of_one_change_nothing() -> None:
    logits, ones = random_logits(), torch.ones(len(TARGET), dtype=torch.float64)
    plain = edge_softmax(logits, TARGET, ATOMS, None, smooth=False)
    torch.testing.assert_close(edge_softmax(logits, TARGET, ATOMS, ones, smooth=False), plain, rtol=0, atol=EXACT64)
    torch.testing.assert_close(edge_softmax(logits, TARGET, ATOMS, ones, smooth=True), plain, rtol=0, atol=1e-6)


def test_formula_with_an_envelope() -> None:
    logits, envelope = random_logits(), torch.rand(len(TARGET), dtype=torch.float64)
    numerator = envelope[:, None] * logits.exp()
    total = torch.zeros(ATOMS, 2, dtype=torch.float64).index_add(0, TARGET, numerator)
    expected = numerator / total[TARGET] * envelope[:, None]
    weights = edge_softmax(logits, TARGET, ATOMS, envelope, smooth=True)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("logit", [0.0, 30.0, 300.0])
@pytest.mark.parametrize("smooth", [True, False])
def test_padding_edges_count_for_nothing(dtype: torch.dtype, logit: float, smooth: bool) -> None:
    """Whatever their logits; also where an atom has only padding edges."""
    logits = random_logits().to(dtype)
    padded = torch.cat([logits, torch.full((3, 2), logit, dtype=dtype)])
    target = torch.cat([TARGET, torch.tensor([0, 1, 3])])
    mask = torch.cat([torch.ones(len(TARGET), dtype=dtype), torch.zeros(3, dtype=dtype)])
    weights = edge_softmax(padded, target, ATOMS, mask, smooth=smooth)
    expected = edge_softmax(logits, TARGET, ATOMS, mask[: len(TARGET)], smooth=smooth)
    torch.testing.assert_close(weights[: len(TARGET)], expected)
    assert torch.equal(weights[len(TARGET) :], torch.zeros(3, 2, dtype=dtype))


@pytest.mark.parametrize("smooth", [True, False])
def test_only_padding_edges_have_finite_derivatives(smooth: bool) -> None:
    logits = torch.randn(2, 1, requires_grad=True)
    weights = edge_softmax(logits, torch.tensor([0, 0]), 1, torch.zeros(2), smooth=smooth)
    assert torch.equal(weights, torch.zeros(2, 1))
    (first,) = torch.autograd.grad(weights.sum(), logits, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), logits)
    assert bool(first.isfinite().all()) and bool(second.isfinite().all())


@pytest.mark.parametrize("logit", [0.0, 5.0, 10.0, 15.0])
def test_a_neighbour_enters_from_nothing(logit: float) -> None:
    """At vanishing weight a neighbour changes nothing, even if its logit is by far the largest."""
    logits = torch.tensor([[0.0], [0.3], [logit]], dtype=torch.float64)
    target = torch.zeros(3, dtype=torch.int64)
    with_it = edge_softmax(logits, target, 1, torch.tensor([1.0, 0.8, 1e-30], dtype=torch.float64), smooth=True)
    without = edge_softmax(logits[:2], target[:2], 1, torch.tensor([1.0, 0.8], dtype=torch.float64), smooth=True)
    torch.testing.assert_close(with_it[:2], without, rtol=0, atol=EXACT64)
    assert with_it[2].abs().item() < EXACT64


@pytest.mark.parametrize("envelope", [0.5, 1e-3, 1e-6, 1e-9, 1e-12])
def test_the_only_neighbour_leaves_with_its_message(envelope: float) -> None:
    """In float32 too its weight falls to 0 with the envelope, and derivatives up to the second stay finite."""
    logits = torch.tensor([[0.7]], requires_grad=True)
    weight = torch.tensor([envelope], requires_grad=True)
    value = edge_softmax(logits, torch.tensor([0]), 1, weight, smooth=True)
    assert 0 <= value.item() <= envelope * 1.001
    first = torch.autograd.grad(value.sum(), (logits, weight), create_graph=True)
    second = torch.autograd.grad(first[1].sum(), (logits, weight))
    assert all(bool(g.isfinite().all()) for g in (*first, *second))


def test_derivatives_are_right() -> None:
    """The function does not depend on the number by which the exponentials are kept small."""
    logits = random_logits().requires_grad_()
    envelope = torch.rand(len(TARGET), dtype=torch.float64).requires_grad_()

    def smooth(a: Tensor, w: Tensor) -> Tensor:
        return edge_softmax(a, TARGET, ATOMS, w, smooth=True)

    def plain(a: Tensor) -> Tensor:
        return edge_softmax(a, TARGET, ATOMS, None, smooth=False)

    assert gradcheck(smooth, (logits, envelope)) and gradgradcheck(smooth, (logits, envelope))
    assert gradcheck(plain, logits) and gradgradcheck(plain, logits)
