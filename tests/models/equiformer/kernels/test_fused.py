"""The fused edge operations against plain PyTorch: values, first and second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from contract.variants import VARIANTS, build
from denskit.batch import System
from denskit.data.base import collate
from denskit.geometry.edge_frame import edge_frames
from denskit.geometry.so2 import couple_plan
from denskit.models.equiformer.kernels import choose_kernels, functions, reference
from denskit.models.equiformer.kernels.plan import aggregate_plan, gate_plan
from denskit.models.execution import Execution

EXACT = 1e-12
ATOMS = 5
Function = Callable[..., list[Tensor]]


def derivatives(function: Function, inputs: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Outputs, gradients for random gradients of the outputs, and gradients of these for random cotangents."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    generator = torch.Generator().manual_seed(seed)

    def like(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in tensors]

    outputs = function(*inputs)
    grads = [g.requires_grad_() for g in like(outputs)]
    first = torch.autograd.grad(outputs, inputs, grads, create_graph=True, materialize_grads=True)
    used = [g for g in first if g.requires_grad]
    second = torch.autograd.grad(used, [*inputs, *grads], like(used), materialize_grads=True)
    return [*outputs, *first, *second]


def check(plain: Function, fused: Function, inputs: Sequence[Tensor]) -> None:
    for expected, found in zip(derivatives(plain, inputs, 1), derivatives(fused, inputs, 1), strict=True):
        scale = max(1.0, float(expected.detach().abs().max())) if expected.numel() else 1.0
        torch.testing.assert_close(found, expected, rtol=0, atol=EXACT * scale)


def frames(edges: int, l_max: int) -> list[Tensor]:
    return list(edge_frames(torch.randn(edges, 3), l_max).wigner)


def ends(edges: int) -> tuple[Tensor, Tensor]:
    return torch.randint(ATOMS, (edges,)), torch.randint(ATOMS, (edges,)).sort().values


@pytest.fixture(autouse=True)
def _double_and_poisoned() -> object:
    """Double precision, and NaN in memory that nobody has written: a kernel must write, or clear, all that it gives."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("parity", [False, True])
@pytest.mark.parametrize(
    ("channels", "m_max", "edges"),
    [((5,), 0, 7), ((4, 3), 1, 7), ((6, 4, 3), 2, 9), ((6, 4, 3), 0, 9), ((3, 5, 2, 4), 3, 6), ((3, 5, 2, 4), 1, 6),
     ((4, 3), 1, 0), ((20, 16, 11), 2, 5), ((3, 2, 2, 2, 9), 2, 4)],  # rows of more than eight numbers; l = 4
)  # fmt: skip
def test_couple(channels: tuple[int, ...], m_max: int, edges: int, parity: bool) -> None:
    degrees = len(channels)
    plan = couple_plan(channels, degrees - 1, m_max, parity)
    source, target = ends(edges)
    nodes = [torch.randn(ATOMS, 2 * l + 1, c) for _ in range(2) for l, c in enumerate(channels)]

    def of(kernels: Callable[..., list[Tensor]]) -> Function:
        def function(*x: Tensor) -> list[Tensor]:
            ones = torch.ones(edges, 1, 1)  # degree 0 is never turned: its matrix is no input
            wigner = [ones, *x[2 * degrees : -1]]
            return kernels(plan, x[:degrees], x[degrees : 2 * degrees], source, target, wigner, x[-1])

        return function

    inputs = [*nodes, *frames(edges, degrees - 1)[1:], torch.randn(edges, plan.num_weights)]
    check(of(reference.couple), of(functions.couple), inputs)


@pytest.mark.parametrize(
    ("scalars", "widths", "logits", "m_max"),
    [(6, (), 4, 0), (5, (4,), 3, 1), (6, (4, 3), 0, 2), (6, (4, 3), 8, 0), (20, (16, 11), 9, 2)],
)
def test_gate(scalars: int, widths: tuple[int, ...], logits: int, m_max: int) -> None:
    plan, edges = gate_plan(scalars, widths, logits, m_max), 6
    shapes = [
        (edges, 1 if m == 0 else 2, widths[l - 1] if l else scalars + sum(widths) + logits) for l, m in plan.blocks
    ]

    def of(kernels: Callable[..., tuple[list[Tensor], Tensor]]) -> Function:
        def function(*mixed: Tensor) -> list[Tensor]:
            grouped, passed = kernels(plan, mixed)
            return [*grouped, passed] if logits else grouped

        return function

    check(of(reference.gate), of(functions.gate), [2 * torch.randn(shape) for shape in shapes])


@pytest.mark.parametrize(
    ("degrees", "channels", "heads", "m_max", "edges"),
    [((0,), (4,), 2, 0, 7), ((1,), (6,), 3, 1, 7), ((0, 1, 2), (8, 4, 4), 2, 2, 9), ((0, 1, 2), (3, 5, 2), 1, 0, 9),
     ((0, 2, 3), (4, 8, 4), 4, 3, 5), ((0, 1), (4, 2), 2, 1, 0),
     ((0, 1, 2), (40, 36, 22), 2, 2, 5), ((4,), (10,), 1, 2, 4)],
)  # fmt: skip
def test_aggregate(degrees: tuple[int, ...], channels: tuple[int, ...], heads: int, m_max: int, edges: int) -> None:
    plan = aggregate_plan(degrees, channels, m_max)
    _, target = ends(edges)
    values = [torch.randn(edges, 1 if m == 0 else 2, plan.width(m)) for m in range(m_max + 1)]

    def of(kernels: Callable[..., list[Tensor]]) -> Function:
        def function(*x: Tensor) -> list[Tensor]:
            wigner = [torch.ones(edges, 1, 1), *x[m_max + 2 :]]
            return kernels(plan, x[: m_max + 1], x[m_max + 1], target, ATOMS, wigner)

        return function

    check(
        of(reference.aggregate),
        of(functions.aggregate),
        [*values, torch.rand(edges, heads), *frames(edges, max(degrees))[1:]],
    )


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if variant.config.name == "equiformer"])
def test_whole_models(name: str, systems: dict[str, System]) -> None:
    """Predictions, and gradients of a loss of them."""
    model = build(name, torch.float64).train()
    batch = collate([systems["ethanol"], systems["triclinic"]], torch.float64)[0]
    batch = model.config.with_neighbors(batch)
    force_input = torch.randn_like(batch.positions) if "noise" in model.heads else None
    found: list[list[Tensor]] = []
    for kernels in ("plain", "fused"):
        model.execution = Execution(kernels=kernels)
        out = model(batch, force_input)
        loss = torch.stack([value.square().sum() for value in out.values()]).sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
        found.append([*out.values(), *gradients])
    for plain, fused in zip(*found, strict=True):
        scale = float(torch.linalg.vector_norm(plain.detach()))
        torch.testing.assert_close(fused, plain, rtol=0, atol=1e-10 * max(1.0, scale))


def test_auto_takes_kernels_where_there_are_any() -> None:
    assert choose_kernels("auto", torch.device("cpu")) == "fused"
    assert choose_kernels("auto", torch.device("cuda")) == "plain"
    with pytest.raises(ValueError, match="kernels=fused: there are no fused kernels for cuda; take kernels=auto"):
        choose_kernels("fused", torch.device("cuda"))


def test_indices_of_another_integer_type() -> None:
    """A caller's own neighbour list may hold int32; kernels read int64."""
    plan, wigner, (source, target) = couple_plan((4, 2), 1, 1), frames(6, 1), ends(6)
    nodes, radial = [torch.randn(ATOMS, 2 * l + 1, c) for l, c in enumerate((4, 2))], torch.randn(6, plan.num_weights)
    wanted = functions.couple(plan, nodes, nodes, source, target, wigner, radial)
    found = functions.couple(plan, nodes, nodes, source.int(), target.int(), wigner, radial)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_tensors_of_two_precisions_are_refused() -> None:
    plan, wigner, (source, target) = couple_plan((4, 2), 1, 1), frames(6, 1), ends(6)
    nodes, radial = [torch.randn(ATOMS, 2 * l + 1, c) for l, c in enumerate((4, 2))], torch.randn(6, plan.num_weights)
    with pytest.raises(TypeError, match=r"one precision, float32 or float64; found torch.float32, torch.float64"):
        functions.couple(plan, nodes, nodes, source, target, wigner, radial.float())
