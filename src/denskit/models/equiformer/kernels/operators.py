"""``torch.ops.denskit``: edge operations, their derivatives and second derivatives as operators.

Tracing and compilation see the operators; their kernels run on CPUs and are imported at first use.  The arguments of an
operator are a layout (numbers of its plan, indices of edges) and lists of tensors:

- ``name(layout..., inputs) -> outputs``
- ``name_backward(layout..., inputs, grads) -> gradients of inputs``
- ``name_double_backward(layout..., inputs, grads, cotangents) -> gradients of inputs, then of grads``
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from denskit.geometry.so2 import couple_plan, rows_of
from denskit.models.equiformer.kernels.plan import GatePlan, Tensors, aggregate_plan, gate_plan


def _gate_outputs(plan: GatePlan, inputs: Tensors) -> list[Tensor]:
    first, edges = inputs[0], inputs[0].shape[0]
    grouped = [first.new_empty(edges, rows_of(m), plan.width(m)) for m in range(plan.m_max + 1)]
    return [*grouped, first.new_empty(edges, plan.num_logits)]


class Operation(NamedTuple):
    """Declaration of the operators of one operation."""

    schema: str  # of the layout
    layout: Callable[..., tuple[Any, ...]]  # arguments of kernels: the plan, indices
    outputs: Callable[..., list[Tensor]]  # empty outputs, from the layout and the inputs


OPERATIONS = {
    "couple": Operation(
        "int[] channels, int l_out, int m_max, bool parity, Tensor source, Tensor target",
        lambda channels, l_out, m_max, parity, *edges: (couple_plan(tuple(channels), l_out, m_max, parity), *edges),
        lambda plan, source, target, inputs: [
            inputs[-1].new_empty(source.shape[0], rows_of(block.m), block.width) for block in plan.blocks
        ],
    ),
    "gate": Operation(
        "int num_scalars, int[] widths, int num_logits, int m_max",
        lambda num_scalars, widths, *sizes: (gate_plan(num_scalars, tuple(widths), *sizes),),
        _gate_outputs,
    ),
    "aggregate": Operation(
        "int[] degrees, int[] channels, int m_max, Tensor target, SymInt num_atoms",
        lambda degrees, channels, m_max, *atoms: (aggregate_plan(tuple(degrees), tuple(channels), m_max), *atoms),
        lambda plan, target, num_atoms, inputs: [
            inputs[0].new_empty(num_atoms, 2 * l + 1, c) for l, c in zip(plan.degrees, plan.channels, strict=True)
        ],
    ),
}
LISTS = {"forward": ("inputs",), "backward": ("inputs", "grads"), "double_backward": ("inputs", "grads", "cotangents")}
LIBRARY = torch.library.Library("denskit", "DEF")


@cache
def _kernels(name: str) -> ModuleType:
    return import_module(f"denskit.models.equiformer.kernels.numba_{name}")


def _run(name: str, derivative: str, *arguments: Any) -> list[Tensor]:
    layout, tensors = _split(name, derivative, arguments)
    return getattr(_kernels(name), derivative)(*layout, *tensors)  # type: ignore[no-any-return]


def _shapes(name: str, derivative: str, *arguments: Any) -> list[Tensor]:
    layout, tensors = _split(name, derivative, arguments)
    if derivative == "forward":
        return OPERATIONS[name].outputs(*layout, *tensors)
    # outputs of a derivative have the shapes of the inputs of the operator before
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for given in tensors[:-1] for x in given]


def _split(name: str, derivative: str, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Tensors, ...]]:
    lists = len(LISTS[derivative])
    return OPERATIONS[name].layout(*arguments[:-lists]), arguments[-lists:]


for _name, _operation in OPERATIONS.items():
    for _derivative, _lists in LISTS.items():
        _operator = _name if _derivative == "forward" else f"{_name}_{_derivative}"
        LIBRARY.define(f"{_operator}({_operation.schema}, {', '.join(f'Tensor[] {x}' for x in _lists)}) -> Tensor[]")
        LIBRARY.impl(_operator, partial(_run, _name, _derivative), "CPU")
        torch.library.register_fake(f"denskit::{_operator}", partial(_shapes, _name, _derivative), lib=LIBRARY)
