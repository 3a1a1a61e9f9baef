"""Layers on edges, in groups of target atoms and computed again for derivatives: memory for systems that do not fit.

Attention of an atom needs only the edges into it.  So a layer on the small graph of a group (some targets, their edges,
and the atoms where these begin) gives what it gives for these targets on the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from torch import Tensor, nn

from denskit.batch import Batch
from denskit.geometry.edge_frame import EdgeFrames
from denskit.models.graph import EdgeGraph
from denskit.models.recompute import Along, EdgeGroup, Recomputed, edge_groups

Graph = TypeVar("Graph", bound=EdgeGraph)


def groups_of(batch: Batch, size: int | None) -> list[EdgeGroup]:
    """Groups of at most about ``size`` edges; none where one would hold all, or where ``size`` is None.

    Raises ValueError for edges that are not sorted by target.
    """
    index = batch.built_edges.index
    target = index[1]
    if size is None or len(target) <= size:
        return []
    if bool((target[1:] < target[:-1]).any()):
        raise ValueError(
            "edges are to be divided into groups (edge_chunk), but are not sorted by target, as build_neighbors leaves "
            "them; sort index, shift and mask of batch.edges by index[1]"
        )
    groups = edge_groups(index, batch.num_atoms, size)
    return groups if len(groups) > 1 else []


def at_targets(
    layer: nn.Module, function: Callable[..., Sequence[Tensor]], x: Sequence[Tensor], graph: EdgeGraph, count: int
) -> list[Tensor]:
    """``function(x, graph)``, in groups where the graph has them.

    Args:
        layer: the module whose parameters the function reads.
        function: from features of atoms (targets first) and a graph to features of the graph's target atoms.
        x: features of all atoms, each [N, ...].
        graph: the edges.
        count: of the results.
    """
    if not graph.groups:
        return list(function(list(x), graph))
    edges = _edge_tensors(graph)

    def of_group(group: EdgeGroup, *tensors: Tensor) -> Sequence[Tensor]:
        return function(list(tensors[: len(x)]), _with_edges(graph, tensors[len(x) :], group))

    rows: list[Along] = ["rows"] * len(x)
    others: list[Along] = ["edges"] * len(edges)
    call = Recomputed(
        function=of_group,
        inputs=[*rows, *others],
        outputs=["targets"] * count,
        parameters=_parameters(layer, graph),
        draws=layer.training,
        groups=graph.groups,
        sizes={"rows": graph.num_atoms, "targets": graph.num_atoms, "edges": len(graph.source)},
    )
    return list(call(*x, *edges))


def at_edges(
    layer: nn.Module,
    function: Callable[[EdgeGroup, Tensor], Sequence[Tensor]],
    x: Tensor,
    groups: Sequence[EdgeGroup],
    count: int,
) -> list[Tensor]:
    """``function(group, x)`` in groups: from what edges have, [E, ...], to ``count`` other tensors of edges."""
    call = Recomputed(
        function=function,
        inputs=["edges"],
        outputs=["edges"] * count,
        parameters=tuple(layer.parameters()),
        draws=False,
        groups=groups,
        sizes={"edges": len(x)},
    )
    return list(call(x))


def again(block: nn.Module, x: Tensor | Sequence[Tensor], graph: EdgeGraph, *args: Any) -> Any:
    """``block(x, graph, *args)``, of which nothing is kept: derivatives compute it again, dropout included.

    x, and so the result: one tensor or several.
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
    """Of a layer, and the tables that some graphs carry for all layers."""
    values = [getattr(graph, item.name) for item in fields(graph)]
    tables = [x for value in values if isinstance(value, tuple) for x in value if isinstance(x, Tensor)]
    return (*layer.parameters(), *tables)


def _edge_tensors(graph: EdgeGraph) -> list[Tensor]:
    """What a graph has of each edge and can be differentiated."""
    frames = graph.frames
    values = [getattr(graph, item.name) for item in fields(graph)]
    others = [x for x in values if isinstance(x, Tensor) and x.is_floating_point()]
    return [frames.length, frames.direction, *frames.wigner, *others]


def _with_edges(graph: Graph, tensors: Sequence[Tensor], group: EdgeGroup | None = None) -> Graph:
    """The graph with other :func:`_edge_tensors`; those of a group make the group's graph."""
    left: Iterator[Tensor] = iter(tensors)
    wigner = graph.frames.wigner
    changes: dict[str, Any] = {
        "frames": EdgeFrames(length=next(left), direction=next(left), wigner=tuple(next(left) for _ in wigner))
    }
    for item in fields(graph):
        value = getattr(graph, item.name)
        if isinstance(value, Tensor) and value.is_floating_point():
            changes[item.name] = next(left)
        elif isinstance(value, Tensor) and group is not None:
            changes[item.name] = value[group.edges]
    if group is not None:
        size = group.targets.stop - group.targets.start
        changes |= {"source": group.source, "target": group.target, "num_atoms": size, "groups": ()}
    return replace(graph, **changes)
