"""Fused kernels on several threads: the numbers of plain PyTorch, and the same numbers each time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from contract.variants import build
from denskit.batch import Batch, System
from denskit.data.base import collate
from denskit.geometry.edge_frame import edge_frames
from denskit.geometry.so2 import couple_plan
from denskit.models.base import ForceField
from denskit.models.equiformer.kernels import functions, reference
from denskit.models.equiformer.kernels.numba_parts import EDGES_PER_PART, parts_of
from denskit.models.equiformer.kernels.plan import aggregate_plan, gate_plan
from denskit.models.execution import Execution, KernelName

from tolerances import EXACT64

THREADS = (1, 2, 4)  # four are more than many machines have
EDGES = 4 * EDGES_PER_PART + 3  # a part for each of four threads, of different lengths
ATOMS = 30
Function = Callable[..., list[Tensor]]


@pytest.fixture(params=THREADS)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def couple_case() -> tuple[Function, Function, list[Tensor]]:
    plan = couple_plan((4, 3), 1, 1)
    source, target = _ends()
    nodes = [_normal(ATOMS, 2 * l + 1, c) for _ in range(2) for l, c in enumerate(plan.channels)]

    def of(kernels: Callable[..., list[Tensor]]) -> Function:
        return lambda *x: kernels(plan, x[:2], x[2:4], source, target, [_ones(), x[4]], x[5])

    # matrices and weights as transposed views: kernels must neither read them wrongly nor write into copies
    wigner = edge_frames(_normal(EDGES, 3), 1).wigner[1].mT.contiguous().mT
    inputs = [*nodes, wigner, _normal(plan.num_weights, EDGES).T]
    return of(reference.couple), of(functions.couple), inputs


def gate_case() -> tuple[Function, Function, list[Tensor]]:
    plan = gate_plan(4, (3,), 2, 1)

    def of(kernels: Callable[..., tuple[list[Tensor], Tensor]]) -> Function:
        def function(*mixed: Tensor) -> list[Tensor]:
            grouped, logits = kernels(plan, mixed)
            return [*grouped, logits]

        return function

    inputs = [_normal(EDGES, 1 if m == 0 else 2, 3 if l else 4 + 3 + 2) for l, m in plan.blocks]
    return of(reference.gate), of(functions.gate), inputs


def aggregate_case() -> tuple[Function, Function, list[Tensor]]:
    plan = aggregate_plan((0, 1), (4, 2), 1)
    _, target = _ends()

    def of(kernels: Callable[..., list[Tensor]]) -> Function:
        return lambda *x: kernels(plan, x[:2], x[2], target, ATOMS, [_ones(), x[3]])

    values = [_normal(EDGES, 1 if m == 0 else 2, plan.width(m)) for m in range(2)]
    inputs = [*values, _normal(2, EDGES).T, edge_frames(_normal(EDGES, 3), 1).wigner[1]]
    return of(reference.aggregate), of(functions.aggregate), inputs


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def _ones() -> Tensor:
    return torch.ones(EDGES, 1, 1, dtype=torch.float64)


def _ends() -> tuple[Tensor, Tensor]:
    return torch.randint(ATOMS, (EDGES,)), torch.randint(ATOMS, (EDGES,)).sort().values


def derivatives(function: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Outputs, gradients for random gradients of the outputs, and gradients of these for random cotangents."""
    inputs = [x.detach().requires_grad_() for x in inputs]  # views keep their strides
    torch.manual_seed(1)
    outputs = function(*inputs)
    grads = [torch.randn_like(x).requires_grad_() for x in outputs]
    first = torch.autograd.grad(outputs, inputs, grads, create_graph=True)
    cotangents = [_normal(*x.shape) for x in first]
    second = torch.autograd.grad(first, [*inputs, *grads], cotangents)
    return [*outputs, *first, *second]


@pytest.mark.parametrize("case", [couple_case, gate_case, aggregate_case])
def test_values_and_derivatives(case: Callable[[], tuple[Function, Function, list[Tensor]]], threads: int) -> None:
    assert len(parts_of(EDGES)) == threads
    plain, fused, inputs = case()
    found, again = derivatives(fused, inputs), derivatives(fused, inputs)
    for wanted, first, second in zip(derivatives(plain, inputs), found, again, strict=True):
        scale = float(wanted.detach().abs().max())
        torch.testing.assert_close(first, wanted, rtol=0, atol=100 * EXACT64 * scale)
        assert torch.equal(first, second), "sums depend on which thread comes first"


def force_field(systems: dict[str, System]) -> tuple[ForceField, Batch]:
    """A small Equiformer, and so many molecules that their edges are divided."""
    model = build("nonlinear", torch.float64)
    batch, _ = collate([systems["ethanol"]] * 40, torch.float64)
    positions = batch.positions + 0.05 * torch.randn_like(batch.positions)
    batch = model.config.with_neighbors(replace(batch, positions=positions))
    assert batch.num_edges > 2 * EDGES_PER_PART
    return model, batch


def test_training_and_prediction(systems: dict[str, System], threads: int) -> None:
    model, batch = force_field(systems)
    found: dict[str, list[Tensor]] = {}
    ways: tuple[KernelName, ...] = ("plain", "fused")
    for kernels in ways:
        model.execution = Execution(kernels=kernels)
        model.train().zero_grad()
        out = model(batch, torch.zeros_like(batch.positions))
        (out["energy"].sum() + out["forces"].square().sum() + out["noise"].square().sum()).backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        predicted = model.predict(batch)
        found[kernels] = [*out.values(), *gradients, predicted["energy"], predicted["forces"]]
    for a, b in zip(found["plain"], found["fused"], strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-10 * max(1.0, float(a.detach().abs().max())))


def test_callers_on_several_threads(systems: dict[str, System]) -> None:
    """Programs may predict from threads of their own, in which gradients are on."""
    model, batch = force_field(systems)
    wanted = model.predict(batch)["forces"]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: model(batch, outputs=("forces",))["forces"].detach(), range(8)))
    finally:
        torch.set_num_threads(before)
    for forces in found:
        torch.testing.assert_close(forces * model.scaling.force_scale, wanted)


def test_first_calls_from_several_threads(tmp_path: Path) -> None:
    """Kernels that nothing has compiled yet, called by four threads at once."""
    program = """
from concurrent.futures import ThreadPoolExecutor
import torch
from denskit.models.execution import Execution
from denskit.models.equiformer.kernels import functions, reference
from denskit.models.execution import KernelName
from denskit.models.equiformer.kernels.plan import gate_plan

torch.set_num_threads(2)
plan = gate_plan(4, (), 2, 0)
x = torch.randn(3000, 1, 6)
with ThreadPoolExecutor(4) as pool:
    found = list(pool.map(lambda _: functions.gate(plan, [x])[0][0], range(4)))
for one in found:
    torch.testing.assert_close(one, reference.gate(plan, [x])[0][0])
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
