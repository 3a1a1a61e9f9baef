"""Constant folding in graphs of single operations, as make_fx traces them from a model."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx


def fold(graph: fx.GraphModule) -> fx.GraphModule:
    """Replace nodes that depend on constants alone by their values, except nodes that are changed in place."""
    changed = _changed_in_place(graph)
    known: dict[fx.Node, Any] = {}
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            known[node] = getattr(graph, node.target)
        elif node.op == "call_function" and node not in changed and all(n in known for n in node.all_input_nodes):
            args = fx.map_arg((node.args, node.kwargs), lambda n: known[n])
            known[node] = node.target(*args[0], **args[1])
    computed = [node for node in known if node.op != "get_attr" and isinstance(known[node], Tensor)]
    folded = [node for node in computed if not known.keys() >= set(node.users)]
    for number, node in enumerate(folded):
        name = f"_folded_{number}"
        graph.register_buffer(name, known[node].detach().contiguous())
        with graph.graph.inserting_before(node):
            constant = graph.graph.get_attr(name)
        node.replace_all_uses_with(constant, delete_user_cb=lambda user: user not in known)
    graph.graph.eliminate_dead_code()
    graph.delete_all_unused_submodules()
    graph.recompile()
    return graph


def _changed_in_place(graph: fx.GraphModule) -> set[fx.Node]:
    """Nodes that a later node writes into, and the nodes that they are views of."""
    changed: set[fx.Node] = set()
    for node in graph.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and schema is not None and schema.is_mutable:
            written: Any = node
            while isinstance(written, fx.Node) and written not in changed:
                changed.add(written)
                written = written.args[0] if written.args else None
    return changed
