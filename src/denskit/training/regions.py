"""A large flat graph, compiled in regions by TorchInductor; regions that are alike are compiled once.

A step with second derivatives has tens of thousands of operations, for which a compiler that takes them all at once
needs many minutes.  Cut into regions it needs time in proportion to their number, and layers of one kind repeat them.
Where to cut is decided by the operations alone (where a hash of the last few has a certain remainder), so that what
repeats is cut at the same places.
"""

from __future__ import annotations

import operator
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

SHORTEST, USUAL, LONGEST = 60, 120, 400  # operations of a region
LOOK_BACK = 6  # operations that decide whether a region ends

Flat = Callable[..., Sequence[Tensor]]
Backend = str | Callable[..., Any]  # as torch.compile takes it


def compiled(flat: Flat, inputs: Sequence[Tensor], say: Callable[[str], None], backend: Backend = "inductor") -> Flat:
    """The graph of :func:`denskit.training.recording.traced` for inputs of these shapes, compiled.

    Where the compiler fails (no C++ compiler) a warning says so, and the graph is used as it is.
    """
    with torch.no_grad():
        # regions must not write into what other regions read
        graph = make_fx(functionalize(flat, remove="mutations"))(*inputs)
    graph.graph.eliminate_dead_code()
    outer, kinds, regions = _in_regions(graph, backend)
    say(f"compiling {kinds} kinds of regions; they make up the {regions} regions of the step")
    try:
        with torch.no_grad():
            outer(*inputs)
    except Exception as error:  # each part of a compiler raises what it happens to raise
        first_line = str(error).strip().split("\n")[0][:200]
        warnings.warn(f"not compiled, and so slower: {type(error).__name__}: {first_line}", stacklevel=2)
        return flat
    return outer


class _Region(nn.Module):
    """Compiles a graph when it is first called."""

    def __init__(self, graph: fx.Graph, backend: Backend) -> None:
        super().__init__()
        self.run = torch.compile(fx.GraphModule({}, graph), backend=backend, dynamic=False, fullgraph=True)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.run(*inputs)


def _in_regions(graph: fx.GraphModule, backend: Backend) -> tuple[fx.GraphModule, int, int]:
    """The same graph made of calls of regions; the numbers of kinds and of calls."""
    outer = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    root = nn.Module()
    kinds: dict[str, str] = {}
    for node in graph.graph.nodes:  # before all regions, whatever their order
        if node.op == "get_attr":
            setattr(root, node.target, getattr(graph, node.target))
        if node.op in ("placeholder", "get_attr"):
            values[node] = outer.node_copy(node)
    regions = _cut([node for node in graph.graph.nodes if node.op == "call_function"])
    for region in regions:
        given, made = _border(region)
        inner, key = _graph_of(region, given, made)
        if key not in kinds:
            kinds[key] = f"region_{len(kinds)}"
            root.add_module(kinds[key], _Region(inner, backend))
        call = outer.call_module(kinds[key], tuple(values[node] for node in given))
        for number, node in enumerate(made):
            values[node] = outer.call_function(operator.getitem, (call, number))
    (result,) = graph.graph.find_nodes(op="output")
    outer.output(fx.map_arg(result.args[0], values.__getitem__))
    return fx.GraphModule(root, outer), len(kinds), len(regions)


def _cut(nodes: list[fx.Node]) -> list[list[fx.Node]]:
    """Regions of consecutive operations.  An operation with several results stays with them."""
    regions: list[list[fx.Node]] = [[]]
    marks = [_mark(node) for node in nodes]
    for number, node in enumerate(nodes):
        region = regions[-1]
        if region and node.target is not operator.getitem and _ends(marks[:number], len(region)):
            regions.append([])
        regions[-1].append(node)
    return regions


def _ends(marks: list[str], length: int) -> bool:
    if length < SHORTEST:
        return False
    return length >= LONGEST or zlib.crc32("".join(marks[-LOOK_BACK:]).encode()) % USUAL == 0


def _mark(node: fx.Node) -> str:
    """What an operation does, but not on what."""
    return f"{node.target}{fx.map_arg((node.args, node.kwargs), lambda _: None)}{_shape(node)}"


def _shape(node: fx.Node) -> str:
    value = node.meta.get("val")
    return f"{value.dtype}{tuple(value.shape)}{value.stride()}" if isinstance(value, Tensor) else ""


def _border(region: list[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """What a region needs from outside, and what the outside needs of it, each in order."""
    inside = set(region)
    given = dict.fromkeys(node for user in region for node in user.all_input_nodes if node not in inside)
    made = [node for node in region if any(user not in inside for user in node.users)]
    return list(given), made


def _graph_of(region: list[fx.Node], given: list[fx.Node], made: list[fx.Node]) -> tuple[fx.Graph, str]:
    """A region as a graph of its own, and a text that is the same for regions that are alike."""
    graph = fx.Graph()
    values = {node: graph.placeholder(f"x{number}") for number, node in enumerate(given)}
    names = {node: f"x{number}" for number, node in enumerate(given)}
    lines = [_shape(node) for node in given]
    for number, node in enumerate(region):
        arguments = fx.map_arg((node.args, node.kwargs), names.__getitem__)
        lines.append(f"{node.target}{arguments}")
        names[node] = f"y{number}"
        values[node] = graph.node_copy(node, values.__getitem__)
    graph.output(tuple(values[node] for node in made))
    return graph, "\n".join([*lines, *(names[node] for node in made)])
