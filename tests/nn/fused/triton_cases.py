"""Triton kernels against the plain operations and their derivatives by autograd; test_triton.py runs this file.

It is not collected by itself: Triton reads TRITON_INTERPRET once, when it is first imported, so that these cases need a
process of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from denskit.geometry.so2 import CouplePlan, couple_plan, rows_of
from denskit.nn.fused import reference, triton_aggregate, triton_couple, triton_gate
from denskit.nn.fused.plan import AggregatePlan, GatePlan, aggregate_plan, gate_plan
from triton_checks import DEVICE, Tensors, check, flat, like, normal


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# --- couple -------------------------------------------------------------------------------------------------------


def check_couple(plan: CouplePlan, edges: int, dtype: torch.dtype) -> None:
    atoms, degrees = 4, len(plan.channels)
    source, target = (torch.randint(atoms, (edges,), device=DEVICE) for _ in range(2))
    ends = [normal(atoms, 2 * l + 1, c) for l, c in enumerate(plan.channels)]
    wigner = [normal(edges, 2 * l + 1, 2 * l + 1) for l in range(degrees)]

    def cut(x: Tensors) -> tuple[Tensors, Tensors, Tensor, Tensor, Tensors, Tensor]:
        return x[:degrees], x[degrees : 2 * degrees], source, target, x[2 * degrees : -1], x[-1]

    def double_backward(x: Tensors, g: Tensors, h: Tensors) -> Tensors:
        h_source, h_target, _, _, h_wigner, h_radial = cut(h)
        parts = (h_source, h_target, h_wigner, h_radial)
        return flat(triton_couple.couple_double_backward(plan, *cut(x), g, *parts))

    check(
        dtype,
        [*ends, *like(ends), *wigner, normal(edges, plan.num_weights)],
        lambda x: reference.couple(plan, *cut(x)),
        lambda x: triton_couple.couple_forward(plan, *cut(x)),
        lambda x, g: flat(triton_couple.couple_backward(plan, *cut(x), g)),
        double_backward,
    )


@pytest.mark.parametrize(
    ("channels", "l_out", "m_max", "edges"),
    [
        ((5,), 0, 0, 4),
        ((3, 2), 1, 1, 3),
        ((5, 4, 3), 2, 2, 2),
        ((5, 4, 3), 2, 0, 1),
        ((4, 3, 2), 2, 1, 1),
        ((2, 3), 2, 1, 1),
        ((2, 3, 2, 1), 3, 3, 1),
    ],
)
def test_couple(channels: tuple[int, ...], l_out: int, m_max: int, edges: int) -> None:
    check_couple(couple_plan(channels, l_out, m_max), edges, torch.float64)


def test_couple_single_precision() -> None:
    check_couple(couple_plan((5, 4), 1, 1), 2, torch.float32)


def test_couple_wide() -> None:
    """More channels than one warp's 256."""
    check_couple(couple_plan((300, 7), 1, 1), 2, torch.float64)


def test_couple_without_edges() -> None:
    check_couple(couple_plan((5, 4, 3), 2, 1), 0, torch.float64)


@pytest.mark.usefixtures("deterministic")
def test_couple_deterministic() -> None:
    check_couple(couple_plan((5, 4), 1, 1), 3, torch.float64)


# --- gate ---------------------------------------------------------------------------------------------------------


def check_gate(plan: GatePlan, edges: int, dtype: torch.dtype) -> None:
    first = plan.num_scalars + sum(plan.widths) + plan.num_logits
    shapes = [(rows_of(m), plan.widths[l - 1] if l else first) for l, m in plan.blocks]

    def plain(mixed: Tensors) -> Tensors:
        grouped, logits = reference.gate(plan, mixed)
        return [*grouped, logits]

    check(
        dtype,
        [2 * normal(edges, *shape) for shape in shapes],
        plain,
        lambda x: triton_gate.gate_forward(plan, x),
        lambda x, g: triton_gate.gate_backward(plan, x, g),
        lambda x, g, h: flat(triton_gate.gate_double_backward(plan, x, g, h)),
    )


@pytest.mark.parametrize(
    ("num_scalars", "widths", "num_logits", "m_max"),
    [(5, (), 3, 0), (5, (4,), 0, 1), (6, (4, 3), 5, 2), (6, (4, 3), 5, 0), (6, (4, 3), 2, 1), (150, (7, 3, 2), 4, 3)],
)
@pytest.mark.parametrize("edges", [0, 4])
def test_gate(num_scalars: int, widths: tuple[int, ...], num_logits: int, m_max: int, edges: int) -> None:
    check_gate(gate_plan(num_scalars, widths, num_logits, m_max), edges, torch.float64)


def test_gate_single_precision() -> None:
    check_gate(gate_plan(6, (4, 3), 5, 2), 40, torch.float32)


def test_gate_far_from_zero() -> None:
    """Where the exponential is infinite or zero, the gate and all its derivatives are finite."""
    plan = gate_plan(2, (2,), 0, 0)
    mixed = [torch.tensor([[[-800.0, 800.0, -800.0, 800.0]]], device=DEVICE), torch.ones(1, 1, 2, device=DEVICE)]
    out = triton_gate.gate_forward(plan, mixed)
    grads = [torch.ones_like(t) for t in out]
    second = flat(triton_gate.gate_double_backward(plan, mixed, grads, [torch.ones_like(t) for t in mixed]))
    assert all(torch.isfinite(t).all() for t in (*out, *triton_gate.gate_backward(plan, mixed, grads), *second))


# --- aggregate ----------------------------------------------------------------------------------------------------


def check_aggregate(plan: AggregatePlan, heads: int, edges: int, dtype: torch.dtype, l_max: int = 3) -> None:
    atoms, orders = 4, plan.m_max + 1
    target = torch.randint(atoms, (edges,), device=DEVICE)
    values = [normal(edges, rows_of(m), plan.width(m)) for m in range(orders)]
    wigner = [normal(edges, 2 * l + 1, 2 * l + 1) for l in range(l_max + 1)]

    def plain(x: Tensors) -> Tensors:
        return reference.aggregate(plan, x[:orders], x[orders], target, atoms, x[orders + 1 :])

    def forward(x: Tensors) -> Tensors:
        return triton_aggregate.aggregate_forward(plan, x[:orders], x[orders], target, atoms, x[orders + 1 :])

    def cut(x: Tensors) -> tuple[Tensors, Tensor, Tensor, Tensors]:
        return x[:orders], x[orders], target, x[orders + 1 :]

    def double_backward(x: Tensors, g: Tensors, h: Tensors) -> Tensors:
        h_values, h_attention, _, h_wigner = cut(h)
        return flat(triton_aggregate.aggregate_double_backward(plan, *cut(x), g, h_values, h_attention, h_wigner))

    check(
        dtype,
        [*values, normal(edges, heads), *wigner],
        plain,
        forward,
        lambda x, g: flat(triton_aggregate.aggregate_backward(plan, *cut(x), g)),
        double_backward,
    )


@pytest.mark.parametrize(
    ("degrees", "channels", "m_max", "heads"),
    [
        ((0,), (6,), 0, 3),
        ((1,), (6,), 1, 2),
        ((0, 1, 2), (6, 4, 2), 2, 2),
        ((0, 1, 2), (5, 4, 3), 0, 1),
        ((1, 2), (6, 3), 1, 3),
        ((0, 1, 2, 3), (4, 3, 2, 1), 3, 1),
    ],
)
def test_aggregate(degrees: tuple[int, ...], channels: tuple[int, ...], m_max: int, heads: int) -> None:
    check_aggregate(aggregate_plan(degrees, channels, m_max), heads, 3, torch.float64)


def test_aggregate_single_precision() -> None:
    check_aggregate(aggregate_plan((0, 1), (6, 4), 1), 2, 3, torch.float32)


def test_aggregate_wide() -> None:
    """More channels than one warp's 256."""
    check_aggregate(aggregate_plan((0, 1), (300, 6), 1), 3, 2, torch.float64, l_max=1)


def test_aggregate_without_edges() -> None:
    check_aggregate(aggregate_plan((0, 1), (6, 4), 1), 2, 0, torch.float64)


@pytest.mark.usefixtures("deterministic")
def test_aggregate_deterministic() -> None:
    check_aggregate(aggregate_plan((0, 1), (6, 4), 1), 2, 5, torch.float64)
