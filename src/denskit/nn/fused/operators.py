"""``torch.ops.denskit``: edge operations and sphere grids, their derivatives and second derivatives as operators.

Operators are what tracing and compilation see; a device's kernels are imported when first needed (numba on CPUs, Triton
on GPUs).  Every operation has a layout, indices or constant matrices first and then lists of tensors:

- ``name(layout..., inputs) -> outputs``
- ``name_backward(layout..., inputs, grads) -> gradients of inputs``
- ``name_double_backward(layout..., inputs, grads, cotangents) -> gradients of inputs, then of grads``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from denskit.geometry.so2 import CouplePlan, couple_plan, rows_of
from denskit.nn.fused.plan import AggregatePlan, GatePlan, aggregate_plan, gate_plan

LAYOUTS = {
    "couple": "int[] channels, int l_out, int m_max, Tensor source, Tensor target",
    "gate": "int num_scalars, int[] widths, int num_logits, int m_max",
    "aggregate": "int[] degrees, int[] channels, int m_max, Tensor target, SymInt num_atoms",
    "s2_activation": "Tensor to_grid, Tensor from_grid",
}
DEVICES = {"CPU": "numba", "CUDA": "triton"}
TRITON_ONLY = ("s2_activation",)  # on a CPU Triton's interpreter runs them; without it they say what is missing
Tensors = Sequence[Tensor]


def _split(tensors: Tensors, *sizes: int) -> list[list[Tensor]]:
    parts, start = [], 0
    for size in sizes:
        parts.append(list(tensors[start : start + size]))
        start += size
    assert start == len(tensors), (start, len(tensors))
    return parts


# --- couple: inputs are features at the source, at the target, Wigner matrices, radial weights ------------------------


def _couple_arguments(plan: CouplePlan, source: Tensor, target: Tensor, inputs: Tensors) -> tuple[Any, ...]:
    degrees = len(plan.channels)
    at_source, at_target, wigner, (radial,) = _split(inputs, degrees, degrees, degrees, 1)
    return plan, at_source, at_target, source, target, wigner, radial


def _couple(
    kernels: str, channels: list[int], l_out: int, m_max: int, source: Tensor, target: Tensor, inputs: Tensors
) -> list[Tensor]:
    arguments = _couple_arguments(couple_plan(tuple(channels), l_out, m_max), source, target, inputs)
    return _kernel(kernels, "couple", "forward")(*arguments)


def _couple_backward(
    kernels: str,
    channels: list[int],
    l_out: int,
    m_max: int,
    source: Tensor,
    target: Tensor,
    inputs: Tensors,
    grads: Tensors,
) -> list[Tensor]:
    arguments = _couple_arguments(couple_plan(tuple(channels), l_out, m_max), source, target, inputs)
    at_source, at_target, wigner, radial = _kernel(kernels, "couple", "backward")(*arguments, grads)
    return [*at_source, *at_target, *wigner, radial]


def _couple_double_backward(
    kernels: str,
    channels: list[int],
    l_out: int,
    m_max: int,
    source: Tensor,
    target: Tensor,
    inputs: Tensors,
    grads: Tensors,
    cotangents: Tensors,
) -> list[Tensor]:
    arguments = _couple_arguments(couple_plan(tuple(channels), l_out, m_max), source, target, inputs)
    degrees = len(channels)
    *h, (h_radial,) = _split(cotangents, degrees, degrees, degrees, 1)
    found = _kernel(kernels, "couple", "double_backward")(*arguments, grads, *h, h_radial)
    at_source, at_target, wigner, radial, d_grads = found
    return [*at_source, *at_target, *wigner, radial, *d_grads]


def _couple_shapes(
    channels: list[int], l_out: int, m_max: int, source: Tensor, target: Tensor, inputs: Tensors
) -> list[Tensor]:
    plan = couple_plan(tuple(channels), l_out, m_max)
    return [inputs[-1].new_empty(source.shape[0], rows_of(block.m), block.width) for block in plan.blocks]


# --- gate: inputs are the blocks by (l, m) ---------------------------------------------------------------------------


def _gate(
    kernels: str, num_scalars: int, widths: list[int], num_logits: int, m_max: int, inputs: Tensors
) -> list[Tensor]:
    return _kernel(kernels, "gate", "forward")(gate_plan(num_scalars, tuple(widths), num_logits, m_max), inputs)


def _gate_backward(
    kernels: str, num_scalars: int, widths: list[int], num_logits: int, m_max: int, inputs: Tensors, grads: Tensors
) -> list[Tensor]:
    plan = gate_plan(num_scalars, tuple(widths), num_logits, m_max)
    return _kernel(kernels, "gate", "backward")(plan, inputs, grads)


def _gate_double_backward(
    kernels: str,
    num_scalars: int,
    widths: list[int],
    num_logits: int,
    m_max: int,
    inputs: Tensors,
    grads: Tensors,
    cotangents: Tensors,
) -> list[Tensor]:
    plan = gate_plan(num_scalars, tuple(widths), num_logits, m_max)
    d_inputs, d_grads = _kernel(kernels, "gate", "double_backward")(plan, inputs, grads, cotangents)
    return [*d_inputs, *d_grads]


def _gate_shapes(num_scalars: int, widths: list[int], num_logits: int, m_max: int, inputs: Tensors) -> list[Tensor]:
    plan: GatePlan = gate_plan(num_scalars, tuple(widths), num_logits, m_max)
    edges = inputs[0].shape[0]
    grouped = [inputs[0].new_empty(edges, rows_of(m), plan.width(m)) for m in range(m_max + 1)]
    return [*grouped, inputs[0].new_empty(edges, num_logits)]


# --- aggregate: inputs are values by m, attention, Wigner matrices ----------------------------------------------------


def _aggregate_parts(plan: AggregatePlan, tensors: Tensors) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    values, (attention,), wigner = _split(tensors, plan.m_max + 1, 1, max(plan.degrees) + 1)
    return values, attention, wigner


def _aggregate(
    kernels: str,
    degrees: list[int],
    channels: list[int],
    m_max: int,
    target: Tensor,
    num_atoms: int,
    inputs: Tensors,
) -> list[Tensor]:
    plan = aggregate_plan(tuple(degrees), tuple(channels), m_max)
    values, attention, wigner = _aggregate_parts(plan, inputs)
    return _kernel(kernels, "aggregate", "forward")(plan, values, attention, target, num_atoms, wigner)


def _aggregate_backward(
    kernels: str,
    degrees: list[int],
    channels: list[int],
    m_max: int,
    target: Tensor,
    num_atoms: int,
    inputs: Tensors,
    grads: Tensors,
) -> list[Tensor]:
    plan = aggregate_plan(tuple(degrees), tuple(channels), m_max)
    values, attention, wigner = _aggregate_parts(plan, inputs)
    found = _kernel(kernels, "aggregate", "backward")(plan, values, attention, target, wigner, grads)
    g_values, g_attention, g_wigner = found
    return [*g_values, g_attention, *g_wigner]


def _aggregate_double_backward(
    kernels: str,
    degrees: list[int],
    channels: list[int],
    m_max: int,
    target: Tensor,
    num_atoms: int,
    inputs: Tensors,
    grads: Tensors,
    cotangents: Tensors,
) -> list[Tensor]:
    plan = aggregate_plan(tuple(degrees), tuple(channels), m_max)
    values, attention, wigner = _aggregate_parts(plan, inputs)
    h = _aggregate_parts(plan, cotangents)
    found = _kernel(kernels, "aggregate", "double_backward")(plan, values, attention, target, wigner, grads, *h)
    d_values, d_attention, d_wigner, d_grads = found
    return [*d_values, d_attention, *d_wigner, *d_grads]


def _aggregate_shapes(
    degrees: list[int], channels: list[int], m_max: int, target: Tensor, num_atoms: int, inputs: Tensors
) -> list[Tensor]:
    like = inputs[0]
    return [like.new_empty(num_atoms, 2 * l + 1, c) for l, c in zip(degrees, channels, strict=True)]


# --- s2_activation: the one input is the coefficients ----------------------------------------------------------------


def _s2_activation(kernels: str, to_grid: Tensor, from_grid: Tensor, inputs: Tensors) -> list[Tensor]:
    return [_kernel(kernels, "s2", "forward")(to_grid, from_grid, *inputs)]


def _s2_activation_backward(
    kernels: str, to_grid: Tensor, from_grid: Tensor, inputs: Tensors, grads: Tensors
) -> list[Tensor]:
    return [_kernel(kernels, "s2", "backward")(to_grid, from_grid, *inputs, *grads)]


def _s2_activation_double_backward(
    kernels: str, to_grid: Tensor, from_grid: Tensor, inputs: Tensors, grads: Tensors, cotangents: Tensors
) -> list[Tensor]:
    return list(_kernel(kernels, "s2", "double_backward")(to_grid, from_grid, *inputs, *grads, *cotangents))


def _s2_activation_shapes(to_grid: Tensor, from_grid: Tensor, inputs: Tensors) -> list[Tensor]:
    (x,) = inputs
    return [x.new_empty(x.shape[0], from_grid.shape[0], x.shape[2])]


# --- registration ----------------------------------------------------------------------------------------------------


@cache
def _kernel(kernels: str, operation: str, derivative: str) -> Callable[..., Any]:
    module = import_module(f"denskit.nn.fused.{kernels}_{operation}")
    return getattr(module, f"{operation}_{derivative}")  # type: ignore[no-any-return]


def _like_inputs(*arguments: Any) -> list[Tensor]:
    *_, inputs, _ = arguments
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]


def _like_inputs_and_grads(*arguments: Any) -> list[Tensor]:
    *_, inputs, grads, _ = arguments
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (*inputs, *grads)]


OPERATIONS: dict[str, tuple[Callable[..., list[Tensor]], ...]] = {
    "couple": (_couple, _couple_backward, _couple_double_backward, _couple_shapes),
    "gate": (_gate, _gate_backward, _gate_double_backward, _gate_shapes),
    "aggregate": (_aggregate, _aggregate_backward, _aggregate_double_backward, _aggregate_shapes),
    "s2_activation": (_s2_activation, _s2_activation_backward, _s2_activation_double_backward, _s2_activation_shapes),
}
LIBRARY = torch.library.Library("denskit", "DEF")


def _register(name: str, tensors: str, function: Callable[..., Any], shapes: Callable[..., Any], layout: str) -> None:
    LIBRARY.define(f"{name}({layout}, {tensors}) -> Tensor[]")
    for device, kernels in DEVICES.items():
        LIBRARY.impl(name, partial(function, "triton" if name.startswith(TRITON_ONLY) else kernels), device)
    torch.library.register_fake(f"denskit::{name}", shapes, lib=LIBRARY)


for _name, (_forward, _backward, _double_backward, _shapes) in OPERATIONS.items():
    _layout = LAYOUTS[_name]
    _register(_name, "Tensor[] inputs", _forward, _shapes, _layout)
    _register(f"{_name}_backward", "Tensor[] inputs, Tensor[] grads", _backward, _like_inputs, _layout)
    _register(
        f"{_name}_double_backward",
        "Tensor[] inputs, Tensor[] grads, Tensor[] cotangents",
        _double_backward,
        _like_inputs_and_grads,
        _layout,
    )
