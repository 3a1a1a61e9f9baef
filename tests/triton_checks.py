"""What cases of Triton kernels share: their device, random tensors, derivatives by autograd beside the kernels'."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor

from tolerances import EXACT64

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")
FLOAT32 = 2e-6  # relative to the root mean square, as all tolerances; sums of tens of float32 terms in another order

Tensors = list[Tensor]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, device=DEVICE)


def like(tensors: Sequence[Tensor]) -> Tensors:
    return [normal(*t.shape) for t in tensors]


def assert_near(found: Sequence[Tensor], wanted: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Numbers agree; outputs are contiguous and share no memory."""
    assert len(found) == len(wanted)
    used = [t.data_ptr() for t in found if t.numel()]
    assert len(set(used)) == len(used)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == dtype and a.shape == b.shape and a.is_contiguous()
        scale = float(b.detach().square().mean().sqrt()) if b.numel() else 0.0
        tolerance = (EXACT64 if dtype == torch.float64 else FLOAT32) * max(scale, 1e-3) * 4
        torch.testing.assert_close(a.double(), b.detach(), rtol=0, atol=tolerance)


def flat(nested: Sequence[Tensor | Sequence[Tensor]]) -> Tensors:
    return list(chain.from_iterable([part] if isinstance(part, Tensor) else part for part in nested))


def check(
    dtype: torch.dtype,
    inputs: Tensors,
    plain: Callable[[Tensors], Tensors],
    forward: Callable[[Tensors], Tensors],
    backward: Callable[[Tensors, Tensors], Tensors],
    double_backward: Callable[[Tensors, Tensors, Tensors], Tensors],
) -> None:
    """Values, first and second derivatives against autograd's in float64; inputs are left as they were."""
    inputs = [t.requires_grad_() for t in inputs]
    out = plain(inputs)
    grads = [t.requires_grad_() for t in like(out)]
    first = torch.autograd.grad(out, inputs, grads, create_graph=True, materialize_grads=True)
    cotangents = like(first)
    used = [(t, h) for t, h in zip(first, cotangents, strict=True) if t.requires_grad]
    second: Sequence[Tensor] = torch.autograd.grad(
        [t for t, _ in used], [*inputs, *grads], [h for _, h in used], materialize_grads=True
    )
    x, g, h = ([t.detach().to(dtype) for t in tensors] for tensors in (inputs, grads, cotangents))
    before = [t.clone() for t in (*x, *g, *h)]
    assert_near(forward(x), out, dtype)
    assert_near(backward(x, g), first, dtype)
    assert_near(double_backward(x, g, h), second, dtype)
    assert all(torch.equal(a, b) for a, b in zip(before, (*x, *g, *h), strict=True))
