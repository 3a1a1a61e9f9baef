"""Turns Python functions on tensors of fixed shapes into what can be repeated without Python deciding anything.

:func:`traced` writes a function with all its derivatives out as one flat graph of single operations; :func:`recorded`
captures whatever runs on a GPU as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from denskit.models.flat_graph import fold

WARM_UPS = 3  # runs before a capture: libraries initialise themselves and choose their kernels

Flat = Callable[..., Sequence[Tensor]]


def traced(function: Flat, inputs: Sequence[Tensor]) -> Flat:
    """The operations of ``function(*inputs)`` as a graph for inputs of these shapes.

    Gradients that the function asks for are operations like any others.  Parameters that require a gradient stay what
    they are, and may change; other tensors that the function holds are constants.  Custom operations are operations.

    Raises RuntimeError where the function looks at a value (``item``, ``bool``): a step on a device would wait there.
    """
    function(*inputs)  # what is computed once and kept belongs into no graph
    with tracing(TracingContext(FakeTensorMode())):  # one for all notes about shapes; else make_fx makes one for each
        graph = make_fx(function)(*inputs)
    graph = fold(graph)
    for node in graph.graph.nodes:
        if node.op == "get_attr" and not isinstance(constant := getattr(graph, node.target), nn.Parameter):
            # an index that PyTorch would copy to the device each time, which no capture allows
            setattr(graph, node.target, constant.to(inputs[0].device))
    return graph


def recorded(step: Callable[[], None], pool: Any) -> Callable[[], None]:
    """What ``step`` does on a GPU, captured as a CUDA graph; the result repeats it on the same memory.

    The step is run a few times first, and must then leave no trace.  ``pool`` is of ``torch.cuda.graph_pool_handle``:
    graphs that are never repeated at the same time share one.  Other threads, such as those that prepare batches, may
    use the GPU meanwhile.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        step()
    return graph.replay
