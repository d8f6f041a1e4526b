"""Traced graphs without what depends on no input: it is computed once, and stored as a tensor.

Norms that are folded into kernels, positions that are interpolated to the grid of the images, parts of a
matrix that are read by themselves and masks of windows are such. Engines would compute some of it at every
run, or not know its operations at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

MAX_FOLDED_BYTES = 2**24  # of one tensor, unless what it is made of is as large


def fold_constants(module: fx.GraphModule) -> fx.GraphModule:
    """Return a graph in which every value that depends on parameters and constants alone is a tensor.

    Values that an operation overwrites are left as they are, and so are large ones that are made of little,
    such as a small table that is repeated.

    Args:
        module: as ``ExportedProgram.module`` returns it; is changed.
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
        module.register_buffer(name, value.clone())  # a view would keep all that it is a part of
        with graph.inserting_before(node):
            stored = graph.get_attr(name)
        node.replace_all_uses_with(stored)
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)  # holds what the graph still reads, and nothing else


def _constant_values(module: fx.GraphModule) -> dict[fx.Node, Tensor | tuple[Tensor, ...]]:
    """Return what every node that depends on no input computes, unless it is too large."""
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
    """Return the nodes that depend on no input and are the same at every run."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        is_function = node.op == "call_function" and not _draws(node.target)
        if (node.op == "get_attr" or is_function) and all(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def _overwritten_nodes(graph: fx.Graph, among: set[fx.Node]) -> set[fx.Node]:
    """Return the nodes that an operation overwrites, and those that they may share memory with."""
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
