"""A function recorded as a CUDA graph: one launch replays all its kernels, without Python between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

WARM_UPS = 2  # calls before the recording: they fill caches and let libraries choose their kernels

Function = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class Recorded:
    """Calls a function of tensors of fixed shapes by replaying its kernels.

    The function must not look at values on the CPU, nor make tensors from numbers there.  What it changes in place is
    changed by its warm-ups, too.  Outputs are overwritten by the next call, also by that of another recording with the
    same pool.  The inputs are on one CUDA device.
    """

    def __init__(self, function: Function, inputs: Sequence[Tensor], pool: Any = None) -> None:
        self._inputs = [tensor.detach().clone() for tensor in inputs]
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._inputs[0].device):  # else a stream of the current one is recorded, without kernels
            self._record(function, pool)

    def _record(self, function: Function, pool: Any) -> None:
        stream, random = torch.cuda.Stream(), torch.cuda.get_rng_state()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                function(self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.set_rng_state(random)
        # other threads may use the device meanwhile
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._outputs = function(self._inputs)

    @property
    def pool(self) -> Any:
        """The memory of the graph, which others may share."""
        return self._graph.pool()

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """The outputs for inputs on any device."""
        for kept, given in zip(self._inputs, inputs, strict=True):
            kept.copy_(given, non_blocking=True)
        self._graph.replay()
        return self._outputs
