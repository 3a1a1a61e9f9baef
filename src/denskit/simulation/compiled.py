"""A force field as one flat graph of fixed shapes: energies, forces and stress with the gradient written out.

Simulations call one model on one set of atoms a million times.  Tracing it once takes Python and autograd out of a
step, what depends on weights alone is computed once (folded), and torch's compiler joins the many small operations that
are left.  Edges are padded, so that shapes stay while neighbours come and go.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import fields, replace

import torch
import torch._inductor
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from denskit.batch import Batch, Edges
from denskit.models.base import ForceField
from denskit.models.execution import Execution
from denskit.models.flat_graph import fold

SPARE = 1.05  # room for more edges than there are now
MULTIPLE = 32  # edges are padded to a multiple of this

Inputs = tuple[Tensor, ...]


def padded(batch: Batch, capacity: int) -> Batch:
    """The batch with padding edges up to ``capacity``: from the last atom to itself, masked."""
    edges, count = batch.built_edges, batch.num_edges
    missing = capacity - count
    assert missing >= 0, (capacity, count)
    mask = batch.atom_mask.new_ones(count) if edges.mask is None else edges.mask
    last = edges.index.new_full((2, missing), batch.num_atoms - 1)
    pairs = edges.pairs
    if pairs is not None:
        assert missing % 2 == 0, "pairs of padding edges"
        pairs = torch.cat((pairs, torch.arange(count, capacity, device=pairs.device).view(-1, 2)))
    padded_edges = Edges(
        index=torch.cat((edges.index, last), 1),
        shift=torch.cat((edges.shift, edges.shift.new_zeros(missing, 3))),
        mask=torch.cat((mask, mask.new_zeros(missing))),
        pairs=pairs,
    )
    return replace(batch, edges=padded_edges)


class CompiledModel:
    """Calls a frozen model through a graph that is traced and compiled when shapes change.

    On CPUs AOTInductor makes a library of it, so that no Python is left between the operations of a step; on GPUs
    TorchInductor makes kernels, which a CUDA graph repeats.  Where the compiler fails (no C++ compiler, an operation
    that it does not know) the traced graph is used as it is, and a warning says so.

    Args:
        model: in evaluation mode, its parameters without gradients; it must not change any more.
        outputs: of :meth:`ForceField.forward`.
        backend: "inductor"; "eager" runs the traced graph without compiling it.
    """

    def __init__(self, model: ForceField, outputs: tuple[str, ...], backend: str = "inductor") -> None:
        self.model, self.outputs, self.backend = model, outputs, backend
        self._shapes: tuple[torch.Size, ...] = ()
        self._capacity = 0
        self._graph: Callable[..., Inputs] | None = None

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Outputs in scaled units for a batch with edges."""
        if batch.num_edges > self._capacity:
            self._capacity = -int(-batch.num_edges * SPARE // MULTIPLE) * MULTIPLE
        inputs = _inputs(padded(batch, self._capacity))
        shapes = tuple(tensor.shape for tensor in inputs)
        if self._graph is None or shapes != self._shapes:
            self._graph, self._shapes = None, shapes
        return dict(zip(self.outputs, self._run(inputs), strict=True))

    def _run(self, inputs: Inputs) -> Inputs:
        try:
            if self._graph is None:
                self._graph = self._compiled(inputs)
            return self._graph(*inputs)
        except Exception as error:  # each part of a compiler raises what it happens to raise, some at the first call
            if self.backend == "eager":
                raise
            warnings.warn(f"not compiled, and so slower: {type(error).__name__}: {_first_line(error)}", stacklevel=5)
            self.backend = "eager"
            self._graph = self._compiled(inputs)
            return self._graph(*inputs)

    def _compiled(self, inputs: Inputs) -> Callable[..., Inputs]:
        execution = self.model.execution
        if self.backend == "eager":
            return self._traced(inputs, execution)
        if inputs[0].is_cuda:
            # a step is hundreds of small kernels
            graph = self._traced(inputs, execution)
            return torch.compile(graph, backend=self.backend, dynamic=False, mode="reduce-overhead")
        if execution.kernels != "plain":
            execution = replace(execution, kernels="for_compiler")
        return library_of(self._traced(inputs, execution), inputs)

    def _traced(self, inputs: Inputs, execution: Execution) -> fx.GraphModule:
        def outputs_of(*given: Tensor) -> Inputs:
            found = self.model(_batch(given), outputs=self.outputs, execution=execution)
            return tuple(found[name] for name in self.outputs)

        outputs_of(*inputs)  # what models keep must be made before: what is made under tracing is not a number
        return fold(make_fx(outputs_of)(*inputs))


def library_of(graph: fx.GraphModule, inputs: Inputs) -> Callable[..., Inputs]:
    """The graph, compiled for tensors of these shapes on this processor."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch about itself
        exported = torch.export.export(graph, inputs)
        path = torch._inductor.aoti_compile_and_package(exported, package_path=f"{folder}/step.pt2")
        library = torch._inductor.aoti_load_package(path)
    return lambda *given: tuple(library(*given))


def _inputs(batch: Batch) -> Inputs:
    """All tensors of a padded batch and of its edges; pairs of edges, which may be unknown, are the last."""
    values = [getattr(part, item.name) for part in (batch, batch.built_edges) for item in fields(part)]
    return tuple(value for value in values if isinstance(value, Tensor))


def _batch(inputs: Inputs) -> Batch:
    names = [item.name for item in fields(Batch) if item.name != "edges"]
    of_edges = zip((item.name for item in fields(Edges)), inputs[len(names) :], strict=False)
    return Batch(**dict(zip(names, inputs, strict=False)), edges=Edges(**dict(of_edges)))


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
