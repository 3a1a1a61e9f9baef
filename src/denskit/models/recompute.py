"""Activation checkpointing over edge chunks, for any derivative order.

Activations on edges need far more memory than the inputs and outputs of a layer.  Here a layer runs on one chunk of
edges after the other and keeps its inputs only; derivatives recompute the activations.  The derivative of such a call
is again such a call, of the function's derivative, to any order.  Gradient forces, and training on them, therefore hold
the activations of one chunk at a time.  (``torch.utils.checkpoint`` holds those of all chunks under second derivatives:
the first derivative keeps its recomputed activations.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

Along = Literal["rows", "targets", "edges", "whole"]
"""Part of a tensor that a chunk reads or writes: rows of the atoms of its edges, of its target atoms, of its edges, or
the whole tensor.  Results of "rows" and "whole" are summed over chunks."""


@dataclass(frozen=True, kw_only=True)
class EdgeChunk:
    """Some target atoms, all edges into them and their sources, renumbered as a small graph."""

    rows: Tensor  # [n] atoms of the batch, each once: first the targets, then the other sources
    targets: slice  # of the batch's atoms
    edges: slice  # of the batch's edges
    source: Tensor  # [e] in 0 .. n - 1
    target: Tensor  # [e] in 0 .. number of targets - 1


def edge_chunks_of(edge_index: Tensor, num_atoms: int, size: int) -> list[EdgeChunk]:
    """Divide edges [2, E], sorted by target, into chunks of about equal size with all edges of their targets.

    size: largest number of edges per chunk, exceeded by at most the edges of one atom.
    """
    source, target = edge_index
    size = -(-len(source) // max(1, -(-len(source) // size)))
    degree = torch.bincount(target, minlength=num_atoms)
    last = degree.cumsum(0)
    counts = torch.unique_consecutive((last - degree) // max(size, 1), return_counts=True)[1].tolist()
    ends = last.tolist()
    atoms = torch.arange(num_atoms, device=source.device)
    local = torch.empty_like(atoms)
    chunks = []
    atom = edge = 0
    for count in counts:
        targets, edges = slice(atom, atom + count), slice(edge, ends[atom + count - 1])
        others = torch.unique(source[edges])
        others = others[(others < targets.start) | (others >= targets.stop)]
        rows = torch.cat((atoms[targets], others))
        local[rows] = atoms[: len(rows)]
        chunks.append(
            EdgeChunk(rows=rows, targets=targets, edges=edges, source=local[source[edges]], target=target[edges] - atom)
        )
        atom, edge = targets.stop, edges.stop
    return chunks


WHOLE = (None,)  # in place of chunks: all edges at once


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """A function of chunks and the parts of its tensors that they use; maps whole tensors to whole tensors."""

    function: Callable[..., Sequence[Tensor | None]]  # function(chunk, *tensors)
    inputs: Sequence[Along]
    outputs: Sequence[Along] | None = None  # None: all whole, however many
    parameters: tuple[Tensor, ...]  # read by the function itself, differentiable because they are listed
    draws: bool  # the function draws random numbers
    chunks: Sequence[EdgeChunk | None] = WHOLE
    sizes: Mapping[Along, int] = field(default_factory=dict)  # rows of whole tensors
    surroundings: _Surroundings | None = None  # of the first run, restored for recomputation; None: it is the first

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Differentiable to any order."""
        # each view is an autograd node of its own, which tells whether its derivative is wanted
        views = (x.view_as(x) for x in (*tensors, *self.parameters))
        return _Function.apply(self, *views)  # type: ignore[no-any-return]

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """The results without autograd; None is a gradient that is zero everywhere."""
        whole: list[Tensor | None] = []
        for chunk in self.chunks:
            parts = self.function(chunk, *(_take(chunk, *pair) for pair in zip(self.inputs, tensors, strict=True)))
            whole = whole or [None] * len(parts)
            for k, part in enumerate(parts):
                if part is not None:
                    whole[k] = self._put(chunk, self._along(k), whole[k], part)
        return tuple(whole)

    def _along(self, k: int) -> Along:
        return "whole" if self.outputs is None else self.outputs[k]

    def _put(self, chunk: EdgeChunk | None, along: Along, whole: Tensor | None, part: Tensor) -> Tensor:
        if whole is None:
            whole = part.new_zeros(part.shape if along == "whole" else (self.sizes[along], *part.shape[1:]))
        if along == "whole":
            return whole.add_(part)
        assert chunk is not None
        if along == "rows":
            return whole.index_add_(0, chunk.rows, part)
        whole[chunk.edges if along == "edges" else chunk.targets] = part
        return whole

    def derivative(self, needed: Sequence[int], used: Sequence[int]) -> Recomputed:
        """From inputs and gradients of the outputs ``used`` to gradients of the inputs and parameters ``needed``."""
        count = len(self.inputs)

        def function(chunk: EdgeChunk | None, *given: Tensor) -> Sequence[Tensor | None]:
            nested = torch.is_grad_enabled()  # this derivative will be differentiated
            with torch.enable_grad():
                tensors = [x if nested and x.requires_grad else x.detach() for x in given[:count]]
                for i in needed:
                    if i < count and not tensors[i].requires_grad:
                        tensors[i].requires_grad_()
                wanted = [tensors[i] if i < count else self.parameters[i - count] for i in needed]
                results = self.function(chunk, *tensors)
                ends: list[Tensor] = []
                grads: list[Tensor] = []
                for k, grad in zip(used, given[count:], strict=True):
                    result = results[k]
                    if result is not None and result.requires_grad:
                        ends.append(result)
                        grads.append(grad)
                if not ends:
                    return [None] * len(wanted)
                return torch.autograd.grad(ends, wanted, grads, create_graph=nested, allow_unused=True)

        return replace(
            self,
            function=function,
            inputs=(*self.inputs, *(self._along(k) for k in used)),
            outputs=[self.inputs[i] if i < count else "whole" for i in needed],
        )


def _take(chunk: EdgeChunk | None, along: Along, x: Tensor) -> Tensor:
    if along == "whole":
        return x
    assert chunk is not None
    if along == "rows":
        return x.index_select(0, chunk.rows)
    return x[chunk.edges if along == "edges" else chunk.targets]


@dataclass(frozen=True)
class _Surroundings:
    """Global state that a function reads: autocast and the random number generators."""

    device: torch.device
    autocast: torch.dtype | None
    states: tuple[Tensor, Tensor | None] | None  # of the CPU's and the GPU's generator; None: nothing is drawn

    @classmethod
    def now(cls, device: torch.device, draws: bool) -> _Surroundings:
        kind = device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        on_gpu = torch.cuda.get_rng_state(device) if draws and kind == "cuda" else None
        states = (torch.get_rng_state(), on_gpu) if draws else None
        return cls(device, autocast, states)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        kind = self.device.type
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.autocast(kind, dtype=self.autocast, enabled=self.autocast is not None))
            if self.states is not None:
                on_cpu, on_gpu = self.states
                stack.enter_context(torch.random.fork_rng([] if on_gpu is None else [self.device]))
                torch.set_rng_state(on_cpu)
                if on_gpu is not None:
                    torch.cuda.set_rng_state(on_gpu, self.device)
            yield


class _Function(torch.autograd.Function):
    """See :class:`Recomputed`."""

    @staticmethod
    def forward(ctx: Any, call: Recomputed, *tensors: Tensor) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        inputs = tensors[: len(call.inputs)]
        if call.surroundings is None:
            ctx.call = replace(call, surroundings=_Surroundings.now(tensors[0].device, call.draws))
            return call.run(inputs)
        ctx.call = call
        with call.surroundings.again():
            return call.run(inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        call: Recomputed = ctx.call
        tensors = ctx.saved_tensors
        nodes = [node for node, _ in ctx.next_functions][-len(tensors) :]
        # not every tensor that requires a gradient gets one: forces are no derivatives in parameters
        wanted = torch._C._will_engine_execute_node
        needed = [i for i, node in enumerate(nodes) if node is not None and wanted(node)]
        given = {k: grad for k, grad in enumerate(grads) if grad is not None}
        out: list[Tensor | None] = [None] * len(nodes)
        if needed and given:
            found = call.derivative(needed, list(given))(*tensors[: len(call.inputs)], *given.values())
            for i, grad in zip(needed, found, strict=True):
                out[i] = grad
        return (None, *out)
