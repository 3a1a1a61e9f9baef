"""Layers on edge chunks with recomputation, for systems whose activations exceed the memory.

The attention of an atom needs only the edges into it: a layer on the graph of a chunk (some target atoms, the edges
into them, their sources) gives the same result for these targets as on the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from torch import Tensor, nn

from denskit.batch import Batch
from denskit.geometry.edge_frame import EdgeFrames
from denskit.models.graph import EdgeGraph
from denskit.models.recompute import Along, EdgeChunk, Recomputed, edge_chunks_of

Graph = TypeVar("Graph", bound=EdgeGraph)


def chunks_of(batch: Batch, size: int | None) -> list[EdgeChunk]:
    """Chunks of at most about ``size`` edges; none where one chunk holds all edges or ``size`` is None.

    Raises ValueError for edges that are not sorted by target.
    """
    index = batch.built_edges.index
    target = index[1]
    if size is None or len(target) <= size:
        return []
    if bool((target[1:] < target[:-1]).any()):
        raise ValueError(
            "edge_chunk needs edges sorted by target, as build_neighbors returns them, but these are not sorted by "
            "target; sort index, shift and mask of batch.edges by index[1]"
        )
    chunks = edge_chunks_of(index, batch.num_atoms, size)
    return chunks if len(chunks) > 1 else []


def at_targets(
    layer: nn.Module, function: Callable[..., Sequence[Tensor]], x: Sequence[Tensor], graph: EdgeGraph, count: int
) -> list[Tensor]:
    """``function(x, graph)``, in chunks where the graph has them.

    It maps features of atoms (targets first), each [N, ...], and a graph to ``count`` features of the graph's targets,
    and reads the parameters of ``layer``.
    """
    if not graph.chunks:
        return list(function(list(x), graph))
    edges = _edge_tensors(graph)

    rows: list[Along] = ["rows"] * len(x)
    others: list[Along] = ["edges"] * len(edges)
    call = Recomputed(
        function=lambda chunk, *given: function(list(given[: len(x)]), _with_edges(graph, given[len(x) :], chunk)),
        inputs=[*rows, *others],
        outputs=["targets"] * count,
        parameters=_parameters(layer, graph),
        draws=layer.training,
        chunks=graph.chunks,
        sizes={"rows": graph.num_atoms, "targets": graph.num_atoms, "edges": len(graph.source)},
    )
    return list(call(*x, *edges))


def at_edges(
    layer: nn.Module,
    function: Callable[[EdgeChunk, Tensor], Sequence[Tensor]],
    x: Tensor,
    chunks: Sequence[EdgeChunk],
    count: int,
) -> list[Tensor]:
    """``function(chunk, x)`` in chunks: from values of edges [E, ...] to ``count`` other values of edges."""
    call = Recomputed(
        function=function,
        inputs=["edges"],
        outputs=["edges"] * count,
        parameters=tuple(layer.parameters()),
        draws=False,
        chunks=chunks,
        sizes={"edges": len(x)},
    )
    return list(call(x))


def recomputed(block: nn.Module, x: Tensor | Sequence[Tensor], graph: EdgeGraph, *args: Any) -> Any:
    """``block(x, graph, *args)`` without kept activations: derivatives recompute them, with the same dropout.

    x and the result are one tensor or several.
    """
    single = isinstance(x, Tensor)
    features = [x] if isinstance(x, Tensor) else list(x)
    edges = _edge_tensors(graph)

    def function(_: None, *tensors: Tensor) -> Sequence[Tensor]:
        given, rest = list(tensors[: len(features)]), tensors[len(features) :]
        out = block(given[0] if single else given, _with_edges(graph, rest), *args)
        return [out] if single else out

    call = Recomputed(
        function=function,
        inputs=["whole"] * (len(features) + len(edges)),
        parameters=_parameters(block, graph),
        draws=block.training,
    )
    out = list(call(*features, *edges))
    return out[0] if single else out


def _parameters(layer: nn.Module, graph: EdgeGraph) -> tuple[Tensor, ...]:
    """Parameters of a layer, and the tables that some graphs hold for all layers."""
    values = [getattr(graph, item.name) for item in fields(graph)]
    tables = [x for value in values if isinstance(value, tuple) for x in value if isinstance(x, Tensor)]
    return (*layer.parameters(), *tables)


def _edge_tensors(graph: EdgeGraph) -> list[Tensor]:
    """Differentiable tensors of a graph with one row per edge."""
    frames = graph.frames
    values = [getattr(graph, item.name) for item in fields(graph)]
    others = [x for x in values if isinstance(x, Tensor) and x.is_floating_point()]
    return [frames.length, frames.direction, *frames.wigner, *others]


def _with_edges(graph: Graph, tensors: Sequence[Tensor], chunk: EdgeChunk | None = None) -> Graph:
    """The graph with other :func:`_edge_tensors`; with those of a chunk, the chunk's graph."""
    left: Iterator[Tensor] = iter(tensors)
    wigner = graph.frames.wigner
    changes: dict[str, Any] = {
        "frames": EdgeFrames(length=next(left), direction=next(left), wigner=tuple(next(left) for _ in wigner))
    }
    for item in fields(graph):
        value = getattr(graph, item.name)
        if isinstance(value, Tensor) and value.is_floating_point():
            changes[item.name] = next(left)
        elif isinstance(value, Tensor) and chunk is not None:
            changes[item.name] = value[chunk.edges]
    if chunk is not None:
        size = chunk.targets.stop - chunk.targets.start
        changes |= {"source": chunk.source, "target": chunk.target, "num_atoms": size, "chunks": ()}
    return replace(graph, **changes)
