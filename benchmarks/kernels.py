"""Time and memory traffic of the fused edge operations, forward and both derivatives, beside plain PyTorch.

    python benchmarks/kernels.py [--edges 576] [--channels 128,64,32] [--turns 60] [--json FILE]

One thread, float32.  Traffic is what an operation must move: inputs and outputs once.  Its share of the copy ceiling
(measured in the same run) says how much is left: an operation at 100 % cannot be faster unless its data stay in caches.
Plain derivatives are autograd's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from denskit.geometry.edge_frame import edge_frames
from denskit.geometry.so2 import couple_plan
from denskit.models.equiformer.kernels import functions, reference
from denskit.models.equiformer.kernels.plan import aggregate_plan, gate_plan
from denskit.runtime.allocator import keep_freed_memory
from denskit_bench.machine import copy_gb_per_s

ATOMS = 72
HEADS = 4
Function = Callable[..., list[Tensor]]


def cases(channels: tuple[int, ...], edges: int) -> dict[str, tuple[Function, Function, list[Tensor]]]:
    """For each operation: plain, fused, and its differentiable inputs, as Equiformer's messages have them."""
    l_max, scalars = len(channels) - 1, channels[0]
    source, target = torch.randint(ATOMS, (edges,)), torch.randint(ATOMS, (edges,)).sort().values
    wigner = list(edge_frames(torch.randn(edges, 3), l_max).wigner)
    plan = couple_plan(channels, l_max, l_max)
    nodes = [torch.randn(ATOMS, 2 * l + 1, c) for _ in range(2) for l, c in enumerate(channels)]
    gates = gate_plan(scalars, channels[1:], scalars, l_max)
    first = scalars + sum(channels[1:]) + scalars
    mixed = [torch.randn(edges, 1 if m == 0 else 2, channels[l] if l else first) for l, m in gates.blocks]
    sums = aggregate_plan(tuple(range(l_max + 1)), channels, l_max)
    values = [torch.randn(edges, 1 if m == 0 else 2, sums.width(m)) for m in range(l_max + 1)]

    def couple(kernel: Function) -> Function:
        n = l_max + 1
        return lambda *x: kernel(plan, x[:n], x[n : 2 * n], source, target, [wigner[0], *x[2 * n : -1]], x[-1])

    def gate(kernel: Callable[..., tuple[list[Tensor], Tensor]]) -> Function:
        def function(*x: Tensor) -> list[Tensor]:
            grouped, logits = kernel(gates, x)
            return [*grouped, logits]

        return function

    def aggregate(kernel: Function) -> Function:
        n = l_max + 1
        return lambda *x: kernel(sums, x[:n], x[n], target, ATOMS, [wigner[0], *x[n + 1 :]])

    radial, attention = torch.randn(edges, plan.num_weights), torch.rand(edges, HEADS)
    return {
        "couple": (couple(reference.couple), couple(functions.couple), [*nodes, *wigner[1:], radial]),
        "gate": (gate(reference.gate), gate(functions.gate), mixed),
        "aggregate": (
            aggregate(reference.aggregate),
            aggregate(functions.aggregate),
            [*values, attention, *wigner[1:]],
        ),
    }


def stages(function: Function, inputs: Sequence[Tensor]) -> dict[str, tuple[Callable[[], object], int]]:
    """Forward, backward and its backward, each with the bytes that it must move."""
    given = [x.clone().requires_grad_() for x in inputs]
    out = function(*given)
    grads = [torch.randn_like(x).requires_grad_() for x in out]
    first = torch.autograd.grad(out, given, grads, create_graph=True)
    cotangents = [torch.randn_like(x) for x in first]

    def size(*tensors: Sequence[Tensor]) -> int:
        return sum(x.numel() * x.element_size() for group in tensors for x in group)

    def forward() -> None:
        with torch.no_grad():
            function(*given)

    return {
        "forward": (forward, size(given, out)),
        "backward": (lambda: torch.autograd.grad(out, given, grads, retain_graph=True), size(given, grads, first)),
        "double backward": (
            lambda: torch.autograd.grad(first, [*given, *grads], cotangents, retain_graph=True),
            size(given, grads, cotangents, given, grads),
        ),
    }


def best(works: Sequence[Callable[[], object]], turns: int) -> list[float]:
    """Least seconds of each, in turn."""
    times = [float("inf")] * len(works)
    for _ in range(turns):
        for number, work in enumerate(works):
            begin = time.perf_counter()
            work()
            times[number] = min(times[number], time.perf_counter() - begin)
    return times


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=576)
    parser.add_argument("--channels", default="128,64,32")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()
    channels = tuple(int(c) for c in options.channels.split(","))
    copy = copy_gb_per_s(torch.device("cpu"))
    rows: list[dict[str, str | float]] = []
    for name, (plain, fused, inputs) in cases(channels, options.edges).items():
        plain_stages, fused_stages = stages(plain, inputs), stages(fused, inputs)
        for stage, (work, size) in fused_stages.items():
            slow, fast = best([plain_stages[stage][0], work], options.turns)
            rows.append({
                "operation": name, "stage": stage, "plain_ms": 1e3 * slow, "fused_ms": 1e3 * fast, "ratio": slow / fast,
                "MB": size / 1e6, "GB_per_s": size / fast / 1e9, "share_of_copy": size / fast / 1e9 / copy,
            })  # fmt: skip
            print(
                "  ".join(
                    f"{key} {value:.3g}" if isinstance(value, float) else value for key, value in rows[-1].items()
                )
            )
    document = {
        "torch": torch.__version__,
        "edges": options.edges,
        "channels": channels,
        "copy_GB_per_s": copy,
        "rows": rows,
    }
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
