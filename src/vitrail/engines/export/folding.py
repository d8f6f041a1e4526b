"""Constant folding of traced graphs.

Examples are norms folded into kernels, positions interpolated to the image grid, slices of weights and window
masks. Engines would recompute some of them at every run, or not support their operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

MAX_FOLDED_BYTES = 2**24  # per tensor, unless its inputs are as large


def fold_constants(module: fx.GraphModule) -> fx.GraphModule:
    """Replace every value that depends on parameters and constants only by a tensor.

    Values that are modified in place stay, and so do large ones made from little, such as a repeated table.

    Args:
        module: as from ``ExportedProgram.module``; modified.
    """
    graph = module.graph
    values = _constant_values(module)
    outermost = [
        node
        for node, value in values.items()
        if node.op != "get_attr"
        and isinstance(value, Tensor)
        and any(user not in values for user in node.users)
    ]
    for number, node in enumerate(outermost):
        name = f"folded_{number}"
        value = values[node]
        assert isinstance(value, Tensor)
        module.register_buffer(name, value.clone())  # a view would keep its whole base
        with graph.inserting_before(node):
            stored = graph.get_attr(name)
        node.replace_all_uses_with(stored)
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)  # holds what the graph still reads, and nothing else


def _constant_values(module: fx.GraphModule) -> dict[fx.Node, Tensor | tuple[Tensor, ...]]:
    """Return the values of all nodes that depend on no input, unless too large."""
    candidates = _independent_nodes(module.graph)
    candidates -= _overwritten_nodes(module.graph, candidates)
    values: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node not in candidates or not all(each in values for each in node.all_input_nodes):
            continue
        if node.op == "get_attr":
            value = _attribute(module, str(node.target))
            limit = None
        else:
            args, kwargs = (fx.map_arg(part, values.__getitem__) for part in (node.args, node.kwargs))
            with torch.no_grad():
                value = node.target(*args, **kwargs)
            limit = max(MAX_FOLDED_BYTES, sum(_num_bytes(values[each]) for each in node.all_input_nodes))
        if _is_of_tensors(value) and (limit is None or _num_bytes(value) <= limit):
            values[node] = value
    return values


def _independent_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that depend on no input and are deterministic."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        is_function = node.op == "call_function" and not _draws(node.target)
        if (node.op == "get_attr" or is_function) and all(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def _overwritten_nodes(graph: fx.Graph, among: set[fx.Node]) -> set[fx.Node]:
    """Return the nodes that are modified in place, and those that may share their memory."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        pending = [each for each in _written_arguments(node) if each in among]
        while pending:
            each = pending.pop()
            if each not in found:
                found.add(each)
                pending += each.all_input_nodes
    return found


def _written_arguments(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the arguments that an operation writes to."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        for each in given if isinstance(given, list | tuple) else [given]:
            if isinstance(each, fx.Node):
                yield each


def _draws(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def _is_of_tensors(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(each, Tensor) for each in value)
    return isinstance(value, Tensor)


def _num_bytes(value: Any) -> int:
    tensors = value if isinstance(value, list | tuple) else [value]
    return sum(each.numel() * each.element_size() for each in tensors)


def _attribute(module: torch.nn.Module, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found.detach() if isinstance(found, Tensor) else found
