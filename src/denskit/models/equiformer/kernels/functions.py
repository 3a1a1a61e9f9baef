"""Edge operations by hand-written kernels, differentiable twice.

Each operation is three operators (:mod:`.operators`): forward, backward and double backward, which training on forces
needs.  Third derivatives raise an error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from denskit.geometry.so2 import CouplePlan
from denskit.models.equiformer.kernels import operators
from denskit.models.equiformer.kernels.plan import AggregatePlan, GatePlan, Tensors

assert operators.LIBRARY.ns == "denskit"  # importing it registers torch.ops.denskit


class _Operation(torch.autograd.Function):
    """``torch.ops.denskit.<name>(*layout, inputs)``."""

    @staticmethod
    def forward(ctx: Any, name: str, layout: tuple[Any, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.name, ctx.layout = name, layout
        ctx.save_for_backward(*inputs)
        return tuple(getattr(torch.ops.denskit, name)(*layout, inputs))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        if not torch.is_grad_enabled():  # not differentiated again
            return (None, None, *getattr(torch.ops.denskit, f"{ctx.name}_backward")(*ctx.layout, inputs, grads))
        return (None, None, *_Backward.apply(ctx.name, ctx.layout, len(inputs), *inputs, *grads))


class _Backward(torch.autograd.Function):
    """The first derivative, differentiable once."""

    @staticmethod
    def forward(ctx: Any, name: str, layout: tuple[Any, ...], count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.name, ctx.layout, ctx.count = name, layout, count
        ctx.save_for_backward(*tensors)
        return tuple(getattr(torch.ops.denskit, f"{name}_backward")(*layout, tensors[:count], tensors[count:]))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        inputs, grads = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        function = getattr(torch.ops.denskit, f"{ctx.name}_double_backward")
        return (None, None, None, *function(*ctx.layout, inputs, grads, cotangents))


def _full(tensors: Tensors) -> list[Tensor]:
    """Half-precision tensors (of autocast) in single precision: kernels have no half precision.

    Raises TypeError for tensors of different precisions: kernels read all of them in one.
    """
    full = [x.float() if x.dtype in (torch.bfloat16, torch.float16) else x for x in tensors]
    found = {x.dtype for x in full}
    if len(found) > 1 or not found <= {torch.float32, torch.float64}:
        names = ", ".join(sorted(map(str, found)))
        raise TypeError(f"fused kernels take tensors of one precision, float32 or float64; found {names}")
    return full


def couple(
    plan: CouplePlan,
    at_source: Tensors,
    at_target: Tensors,
    source: Tensor,
    target: Tensor,
    wigner: Tensors,
    radial: Tensor,
) -> list[Tensor]:
    """As :func:`denskit.models.equiformer.kernels.reference.couple`."""
    layout = (plan.channels, plan.l_out, plan.m_max, plan.parity, source.long(), target.long())
    inputs = _full([*at_source, *at_target, *wigner[: len(plan.channels)], radial])
    return list(_Operation.apply("couple", layout, *inputs))


def gate(plan: GatePlan, mixed: Tensors) -> tuple[list[Tensor], Tensor]:
    """As :func:`denskit.models.equiformer.kernels.reference.gate`."""
    layout = (plan.num_scalars, plan.widths, plan.num_logits, plan.m_max)
    *grouped, logits = _Operation.apply("gate", layout, *_full(mixed))
    return grouped, logits


def aggregate(
    plan: AggregatePlan, values: Tensors, attention: Tensor, target: Tensor, num_atoms: int, wigner: Tensors
) -> list[Tensor]:
    """As :func:`denskit.models.equiformer.kernels.reference.aggregate`."""
    layout = (plan.degrees, plan.channels, plan.m_max, target.long(), num_atoms)
    inputs = _full([*values, attention, *wigner[: max(plan.degrees) + 1]])
    return list(_Operation.apply("aggregate", layout, *inputs))
