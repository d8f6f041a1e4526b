"""A model as one graph of torch's operations, for any batch size and, for some families, any image size.

Tracing avoids the models' CPU shortcuts, which check for compilation and gradients, so that the graph holds
only operations that every engine supports. What depends on weights alone is folded into constants: norms into
kernels, positions interpolated to the image grid, slices of weights, window masks. Engines would recompute
some of them at every run, or not support their operations.
"""

from __future__ import annotations

import copy
import logging
import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from vitrail.core.errors import ConfigError, first_line
from vitrail.core.switch import SharedSwitch
from vitrail.engines.cpu import accelerate
from vitrail.engines.export.package import PortSpec
from vitrail.models.contract import DetectionModelConfig, ImageModelConfig

FREE_SIZE_MULTIPLES = {"resnet": 32, "bit": 32, "detr": 32}
"""Families that work at every image size, and what height and width must be a multiple of: the stride of the
last feature map, for which no layer pads its input.
"""
LEAST_ROWS, MOST_ROWS = 2, 64  # or columns of the last feature map, if free; one row has no stride
EXAMPLE_BATCH = 2  # a batch of one would be traced as a constant
MAX_FOLDED_BYTES = 2**24  # per tensor, unless its inputs are as large


class Traced(NamedTuple):
    """A graph with the names and shapes of its inputs and outputs."""

    program: ExportedProgram
    inputs: tuple[PortSpec, ...]
    outputs: tuple[PortSpec, ...]


class _Graph(nn.Module):
    """A model's logits, and of a detector boxes, in float32.

    Args:
        is_narrow: whether matrix products are in bfloat16, as in training.
    """

    def __init__(self, model: nn.Module, *, is_narrow: bool) -> None:
        super().__init__()
        self.model, self.is_narrow = model, is_narrow

    def forward(
        self,
        images: Float[Tensor, "batch channels height width"],
        sizes: Int[Tensor, "batch 2"] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16) if self.is_narrow else nullcontext():
            output = self.model(images) if sizes is None else self.model(images, sizes)
        if isinstance(output, Tensor):
            return output.float()
        return output.logits.float(), output.boxes.float()


def is_detector(model: nn.Module) -> bool:
    """Return whether a model finds boxes."""
    return isinstance(model.config, DetectionModelConfig)


def free_size_multiple(config: Any) -> int | None:
    """Return what free heights and widths must be a multiple of; None if they are fixed."""
    return FREE_SIZE_MULTIPLES.get(type(config).family)


def trace(
    model: nn.Module, image_size: tuple[int, int], *, is_narrow: bool = False, is_free: bool = False
) -> Traced:
    """Trace a model, which is not modified.

    Args:
        is_narrow: whether matrix products are in bfloat16.

    Raises:
        ConfigError: torch.export cannot follow the model.
    """
    config: Any = model.config
    multiple = free_size_multiple(config) if is_free else None
    size = image_size if multiple is None else _example_size(image_size, multiple)
    graph = _Graph(accelerate(copy.deepcopy(model)).eval().requires_grad_(False), is_narrow=is_narrow)
    arguments = config.example_inputs(EXAMPLE_BATCH, size)
    shapes = _dynamic_shapes(len(arguments), multiple)
    try:
        with quiet(), torch.enable_grad():
            program = _export(graph, arguments, shapes)
            module = program.module(check_guards=False)
            assert isinstance(module, fx.GraphModule)
            program = _export(fold_constants(module), arguments, shapes)
    except Exception as error:  # torch.export has dozens of errors without a base class
        raise ConfigError(
            f"torch.export cannot follow {config.family}: {first_line(error)}",
            expected="a model whose operations do not depend on the values of images",
            remedy="Report this as a defect of vitrail, with the settings of the model",
        ) from error
    return Traced(program, input_ports(config, size, multiple), _output_ports(config))


def input_ports(
    config: ImageModelConfig | DetectionModelConfig, size: tuple[int, int], multiple: int | None = None
) -> tuple[PortSpec, ...]:
    """Return the inputs of a model for images of one size, or of every size that is a multiple."""
    num_channels = config.num_channels if isinstance(config, ImageModelConfig) else 3
    images = PortSpec(
        name="images",
        dtype="float32",
        axes=("batch", num_channels, *(size if multiple is None else ("height", "width"))),
        multiple_of=multiple or 1,
        at_least=1 if multiple is None else LEAST_ROWS * multiple,
    )
    if isinstance(config, ImageModelConfig):
        return (images,)
    return images, PortSpec(name="sizes", dtype="int64", axes=("batch", 2))


def _output_ports(config: ImageModelConfig | DetectionModelConfig) -> tuple[PortSpec, ...]:
    if isinstance(config, ImageModelConfig):
        return (PortSpec(name="logits", dtype="float32", axes=("batch", config.num_classes)),)
    num_logits = config.num_classes + (config.scoring == "softmax")
    return (
        PortSpec(name="logits", dtype="float32", axes=("batch", config.num_queries, num_logits)),
        PortSpec(name="boxes", dtype="float32", axes=("batch", config.num_queries, 4)),
    )


def _export(
    graph: nn.Module, arguments: tuple[Tensor, ...], shapes: tuple[dict[int, Any], ...]
) -> ExportedProgram:
    # What cannot be proved for all sizes is checked at run time instead of being refused.
    is_free = len(shapes[0]) > 1
    return torch.export.export(
        graph, arguments, dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=is_free
    )


def _dynamic_shapes(num_inputs: int, multiple: int | None) -> tuple[dict[int, Any], ...]:
    batch = Dim("batch", min=1)
    of_images: dict[int, Any] = {0: batch}
    if multiple is not None:
        of_images[2] = multiple * Dim("rows", min=LEAST_ROWS, max=MOST_ROWS)
        of_images[3] = multiple * Dim("columns", min=LEAST_ROWS, max=MOST_ROWS)
    return (of_images, *({0: batch} for _ in range(num_inputs - 1)))


def _example_size(image_size: tuple[int, int], multiple: int) -> tuple[int, int]:
    """Return a nearby size of whole multiples, with different sides so that none is taken for the other."""
    rows, columns = (min(max(-(-length // multiple), LEAST_ROWS), MOST_ROWS - 1) for length in image_size)
    return rows * multiple, (columns + (rows == columns)) * multiple


@contextmanager
def _silence() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


quiet = SharedSwitch(_silence).on
"""Silence developer notes of exporters, in all threads."""


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
        module.register_buffer(name, values[node].clone())  # a view would keep its whole base
        with graph.inserting_before(node):
            stored = graph.get_attr(name)
        node.replace_all_uses_with(stored)
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)  # holds what the graph still reads, and nothing else


def _constant_values(module: fx.GraphModule) -> dict[fx.Node, Any]:
    """Return the values of all nodes that depend on no input, unless too large."""
    candidates = _independent_nodes(module.graph)
    candidates -= _overwritten_nodes(module.graph, candidates)
    values: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node not in candidates or not all(each in values for each in node.all_input_nodes):
            continue
        if node.op == "get_attr":
            value, limit = operator.attrgetter(str(node.target))(module), None
            value = value.detach() if isinstance(value, Tensor) else value
        else:
            args, kwargs = (fx.map_arg(part, values.__getitem__) for part in (node.args, node.kwargs))
            with torch.no_grad():
                value = node.target(*args, **kwargs)
            limit = max(MAX_FOLDED_BYTES, sum(_num_bytes(values[each]) for each in node.all_input_nodes))
        tensors = value if isinstance(value, list | tuple) else [value]
        are_tensors = bool(tensors) and all(isinstance(each, Tensor) for each in tensors)
        if are_tensors and (limit is None or _num_bytes(value) <= limit):
            values[node] = value
    return values


def _independent_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that depend on no input and are deterministic."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        tags = node.target.tags if isinstance(node.target, torch._ops.OpOverload) else ()
        is_function = node.op == "call_function" and torch.Tag.nondeterministic_seeded not in tags
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
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        for each in given if isinstance(given, list | tuple) else [given]:
            if isinstance(each, fx.Node):
                yield each


def _num_bytes(value: Any) -> int:
    tensors = value if isinstance(value, list | tuple) else [value]
    return sum(each.numel() * each.element_size() for each in tensors)
