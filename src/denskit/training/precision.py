"""Less precision in training: half precision and TF32, the loss scale of float16, and the steps that overflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

_DTYPES = {"none": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_SMALLEST_SCALE = 2.0**-10  # of a loss; below it is not overflow that makes gradients infinite


class Precision:
    """Automatic mixed precision: matrix products in half precision, weights, sums and the loss in float32.

    bfloat16 has float32's range.  float16 has not: the loss is multiplied by a scale before the backward pass and the
    gradients divided by it afterwards (Micikevicius et al. 2018).  Where they overflow nevertheless, the step is
    skipped and the scale halved; after 2000 steps without that it is doubled.

    ``tf32``: matrix products of float32 on CUDA devices read 10 bits of each number instead of 23, and sum in float32.
    """

    def __init__(self, amp: Literal["none", "bf16", "fp16"], device: torch.device, *, tf32: bool = False) -> None:
        self.tf32 = tf32 and device.type == "cuda"
        self.device, self.dtype, self.enabled = device.type, _DTYPES[amp], amp != "none"
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp == "fp16")

    def autocast(self) -> torch.autocast:
        """Inside, matrix products are in half precision where that is asked for."""
        return torch.autocast(self.device, dtype=self.dtype, enabled=self.enabled)

    @contextmanager
    def products(self) -> Iterator[None]:
        """Inside, matrix products of float32, also those of derivatives, are in TF32 where that is asked for."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.tf32 else before)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss [], scaled until :meth:`unscale`."""
        self.scaler.scale(loss).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of all micro-batches and processes by the loss scale; before clipping."""
        self.scaler.unscale_(optimizer)

    def skips(self, norm: Tensor) -> bool:
        """Whether a step with this gradient norm [] is to be skipped; then the loss scale is lowered.

        False for float32 and bfloat16, and where the scale has become so small that it cannot be the cause.
        """
        if not self.scaler.is_enabled():
            return False
        small = self.scaler.get_scale() < _SMALLEST_SCALE
        self.scaler.update()
        return not bool(torch.isfinite(norm)) and not small

    def state(self) -> dict[str, Any]:
        """The loss scale and its history; empty without float16."""
        return self.scaler.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state` gave."""
        if state:
            self.scaler.load_state_dict(state)
