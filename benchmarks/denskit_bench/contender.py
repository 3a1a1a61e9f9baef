"""A side of a contest: something that can do the work of a job, again and again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from denskit_bench.job import Side
from denskit_bench.peers.gauges import read_clocks


class Contender(Protocol):
    """Takes steps; in this process or in one of its own."""

    parameters: int | None  # of its model, where it has one

    def step(self) -> dict[str, float]:
        """Do the work once; seconds by every clock."""
        ...


class Own:
    """A contender in this process; ``turn`` steps are timed together, for what is slower after a break."""

    def __init__(
        self,
        work: Callable[[], object],
        device: torch.device,
        module: nn.Module | None = None,
        *,
        counts: bool = True,
        turn: int = 1,
    ) -> None:
        self.work, self.device, self.counts, self.module, self.turn = work, device, counts, module, turn
        self.parameters = sum(parameter.numel() for parameter in module.parameters()) if module is not None else None

    def step(self) -> dict[str, float]:
        """Do the work ``turn`` times; seconds of once by every clock."""
        found = read_clocks(lambda: [self.work() for _ in range(self.turn)], self.device)
        return {clock: seconds / self.turn for clock, seconds in found.items()}

    def count(self) -> Counted | None:
        """What one step does, from running it once more; None where nothing can be counted."""
        return count(self.work) if self.counts else None


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What torch was asked to do in one step."""

    matmul_gflop: float  # 10^9 floating-point operations of all matrix products
    traffic_gb: float  # 10^9 bytes that all operations read and write, were nothing kept in caches


class _Traffic(TorchDispatchMode):
    """Adds up the bytes of what operations read and write; views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        views = any(value.alias_info and not value.alias_info.is_write for value in func._schema.returns)
        if not views:
            self.bytes += _bytes(tree_leaves((args, kwargs))) + _bytes(tree_leaves(out))
        return out


def _bytes(values: Iterable[object]) -> int:
    """Of all tensors; what is broadcast lies in memory once."""
    return sum(
        value.element_size() * math.prod(n for n, stride in zip(value.shape, value.stride(), strict=True) if stride)
        for value in values
        if isinstance(value, Tensor) and value.layout == torch.strided
    )


def count(work: Callable[[], object]) -> Counted:
    """Run something once and count."""
    with FlopCounterMode(display=False) as products, _Traffic() as traffic:
        work()
    return Counted(matmul_gflop=products.get_total_flops() / 1e9, traffic_gb=traffic.bytes / 1e9)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far both sides are from each other, relative to the size of the numbers; what is too far raises before."""

    differences: dict[str, float]  # by output and precision
    tolerance: dict[str, float]

    def check(self) -> None:
        """Raise ValueError, naming the outputs, where the two sides differ by more than the tolerances."""
        wrong = {name: value for name, value in self.differences.items() if not value <= self.tolerance[name]}
        if wrong:
            wanted = {name: self.tolerance[name] for name in wrong}
            raise ValueError(
                f"the two sides disagree, so nothing was timed: relative difference {wrong}; wanted at most {wanted}"
            )


@dataclass(kw_only=True)
class Meeting:
    """The sides of a job, ready to take steps; a context that ends their processes."""

    contenders: dict[Side, Contender] = field(default_factory=dict)
    agreement: Agreement | None = None  # None where they are different functions, or there is one side
    facts: dict[str, Any] = field(default_factory=dict)  # sizes: "atoms", "edges", "structures", ...
    resources: ExitStack = field(default_factory=ExitStack)  # what to close in the end

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *error: object) -> None:
        self.resources.close()
