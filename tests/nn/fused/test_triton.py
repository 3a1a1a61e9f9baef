"""The Triton kernels in processes of their own: under Triton's interpreter anywhere, compiled where there is a GPU.

The cases are in triton_cases.py and triton_s2_cases.py.  Triton reads TRITON_INTERPRET when it is first imported, and
any other test may have imported it in this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from denskit.geometry.so2 import CouplePlan, couple_plan
from denskit.nn.fused.functions import s2_silu
from denskit.nn.fused.plan import aggregate_plan, gate_plan

CASES = [Path(__file__).with_name(name) for name in ("triton_cases.py", "triton_s2_cases.py")]
OPERATIONS = ["couple", "gate", "aggregate", "s2"]

compiled = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1: nothing is compiled"
)
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed (extra: test, on Linux)")


def run(operation: str, **variables: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TRITON_"))}
    options = ["-q", "-k", f"test_{operation}", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *map(str, CASES), *options]
    finished = subprocess.run(
        command, env=environment | variables, cwd=CASES[0].parents[3], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert " passed" in finished.stdout and "skipped" not in finished.stdout, finished.stdout


@pytest.mark.parametrize("operation", OPERATIONS)
def test_interpreted(operation: str) -> None:
    run(operation, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_on_a_gpu(operation: str) -> None:
    run(operation)


def example(plan: CouplePlan, edges: int) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor, list[Tensor], Tensor]:
    """Arguments of couple."""
    at, ends = [torch.randn(3, 2 * l + 1, c) for l, c in enumerate(plan.channels)], torch.zeros(edges, dtype=torch.long)
    wigner = [torch.randn(edges, 2 * l + 1, 2 * l + 1) for l in range(len(plan.channels))]
    return at, at, ends, ends, wigner, torch.randn(edges, plan.num_weights)


@compiled
def test_tensors_of_a_processor_are_refused() -> None:
    """The kernels themselves would say that no driver is active."""
    couple = pytest.importorskip("denskit.nn.fused.triton_couple")
    plan = couple_plan((2, 2), 1, 1)
    with pytest.raises(ValueError, match="CUDA devices, these tensors are on cpu"):
        couple.couple_forward(plan, *example(plan, 2))


@compiled
def test_kernels_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The interpreter runs what the compiler refuses; the compiler needs no GPU, only its name."""
    couple, gate, aggregate = (
        pytest.importorskip(f"denskit.nn.fused.triton_{name}") for name in ("couple", "gate", "aggregate")
    )
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    done: list[str] = []
    for module in (couple, gate, aggregate):
        monkeypatch.setattr(module, "launch", partial(compile_only, done))
    plan = couple_plan((8, 4), 1, 1)
    at, _, _, target, wigner, radial = inputs = example(plan, 2)
    out = couple.couple_forward(plan, *inputs)
    couple.couple_backward(plan, *inputs, out)
    couple.couple_double_backward(plan, *inputs, out, at, at, wigner, radial)
    plan_of_gate = gate_plan(8, (4,), 3, 1)
    mixed = [torch.randn(2, 1, 15), torch.randn(2, 1, 4), torch.randn(2, 2, 4)]
    gated = gate.gate_forward(plan_of_gate, mixed)
    gate.gate_backward(plan_of_gate, mixed, gated)
    gate.gate_double_backward(plan_of_gate, mixed, gated, mixed)
    plan_of_sums, attention = aggregate_plan((0, 1), (8, 4), 1), torch.randn(2, 2)
    values = [torch.randn(2, 1, 12), torch.randn(2, 2, 4)]
    sums = aggregate.aggregate_forward(plan_of_sums, values, attention, target, 3, wigner)
    aggregate.aggregate_backward(plan_of_sums, values, attention, target, wigner, sums)
    both = (values, attention, target, wigner, sums, values, attention, wigner)
    aggregate.aggregate_double_backward(plan_of_sums, *both)
    assert done == ["_forward", "_backward", "_double_backward"] * 3


@pytest.fixture
def tf32() -> Iterator[None]:
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


def compiled_precisions(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, folder: Path) -> set[str]:
    """Of the products in the kernels for the messages of EquiformerV2, all of which compile.

    They fit into the shared memory that GPUs since the A100 have for a block.
    """
    s2 = pytest.importorskip("denskit.nn.fused.triton_s2")
    done: list[str] = []
    precisions = set()

    def launch(*arguments: Any, **constants: Any) -> None:
        precisions.add(constants["PRECISION"])
        compile_only(done, *arguments, shared=96 * 1024, **constants)

    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    monkeypatch.setattr(s2, "launch", launch)
    x, grad = torch.randn(2, 29, 64, dtype=dtype), torch.randn(2, 28, 64, dtype=dtype)
    grids = torch.randn(324, 29, dtype=dtype), torch.randn(28, 324, dtype=dtype)
    s2.s2_forward(*grids, x)
    s2.s2_backward(*grids, x, grad)
    s2.s2_double_backward(*grids, x, grad, x)
    assert done == ["_forward", "_backward", "_double_backward"]
    return precisions


@compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_of_grids_compile(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert compiled_precisions(dtype, monkeypatch, tmp_path) == {"ieee"}


@compiled
@pytest.mark.usefixtures("tf32")
def test_kernels_of_grids_follow_the_precision_of_products(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert compiled_precisions(torch.float32, monkeypatch, tmp_path) == {"tf32"}


@compiled
def test_grids_of_a_processor_are_refused() -> None:
    """The operator is there for the interpreter."""
    with pytest.raises(ValueError, match="CUDA devices, these tensors are on cpu"):
        s2_silu(torch.randn(2, 4, 3), torch.randn(9, 4), torch.randn(4, 9))


def compile_only(
    done: list[str], kernel: Any, grid: tuple[int, ...], *arguments: Any, shared: int = 0, **constants: Any
) -> None:
    """What launch takes, to machine code for an A100; ``shared``: bytes of shared memory that it may need."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = {"num_warps": constants.pop("num_warps"), "enable_fp_fusion": True}
    signature = dict(zip(kernel.arg_names, map(kind, arguments), strict=False)) | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)
    assert "cubin" in made.asm and made.metadata.shared <= shared
    done.append(kernel.__name__)


def kind(argument: Any) -> Any:
    """The type of an argument as the compiler writes it."""
    if isinstance(argument, tuple):
        return tuple(map(kind, argument))
    if isinstance(argument, int):
        return "i32"
    return {torch.int64: "*i64", torch.float32: "*fp32", torch.float64: "*fp64"}[argument.dtype]
