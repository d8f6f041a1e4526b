"""A model as one graph of torch's operations, for any batch size and, for some families, any image size.

Tracing avoids the models' CPU shortcuts, which check for compilation and gradients, so that the graph holds
only operations that every engine supports.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from vitrail.core.errors import ConfigError
from vitrail.core.switch import SharedSwitch
from vitrail.engines.cpu import accelerate
from vitrail.engines.export.folding import fold_constants
from vitrail.engines.export.package import PortSpec
from vitrail.models.contract import DetectionModelConfig, ImageModelConfig

FREE_SIZE_MULTIPLES = {"resnet": 32, "bit": 32, "detr": 32}
"""Families that work at every image size, and what height and width must be a multiple of: the stride of the
last feature map, for which no layer pads its input.
"""
LEAST_CELLS, MOST_CELLS = (
    2,
    64,
)  # rows or columns of the last feature map, if free; one row has no stride
EXAMPLE_BATCH = 2  # a batch of one would be traced as a constant


class Traced(NamedTuple):
    """A graph with the names and shapes of its inputs and outputs."""

    program: ExportedProgram
    inputs: tuple[PortSpec, ...]
    outputs: tuple[PortSpec, ...]


class ImageGraph(nn.Module):
    """A classifier's logits, in float32.

    Args:
        model: in evaluation mode.
        is_narrow: whether matrix products are in bfloat16, as in training.
    """

    def __init__(self, model: nn.Module, *, is_narrow: bool) -> None:
        super().__init__()
        self.model, self.is_narrow = model, is_narrow

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        with _autocast(self.is_narrow):
            logits: Tensor = self.model(images)
        return logits.float()


class BoxGraph(nn.Module):
    """A detector's logits and boxes, in float32.

    Args:
        model: in evaluation mode.
        is_narrow: whether matrix products are in bfloat16, as in training.
    """

    def __init__(self, model: nn.Module, *, is_narrow: bool) -> None:
        super().__init__()
        self.model, self.is_narrow = model, is_narrow

    def forward(
        self, images: Float[Tensor, "batch 3 height width"], sizes: Int[Tensor, "batch 2"]
    ) -> tuple[Float[Tensor, "batch queries classes"], Float[Tensor, "batch queries 4"]]:
        with _autocast(self.is_narrow):
            output = self.model(images, sizes)
        return output.logits.float(), output.boxes.float()


def free_size_multiple(config: ImageModelConfig | DetectionModelConfig) -> int | None:
    """Return what free heights and widths must be a multiple of; None if they are fixed."""
    return FREE_SIZE_MULTIPLES.get(type(config).family)


def trace(
    model: nn.Module, image_size: tuple[int, int], *, is_narrow: bool = False, is_free: bool = False
) -> Traced:
    """Trace a model, which is not modified.

    Args:
        model: a classifier or a detector, in evaluation mode.
        image_size: height and width for tracing.
        is_narrow: whether matrix products are in bfloat16.
        is_free: whether height and width stay free.

    Raises:
        ConfigError: torch.export cannot follow the model.
    """
    config = model.config
    assert isinstance(config, ImageModelConfig | DetectionModelConfig), "no model of images"
    own = accelerate(copy.deepcopy(model)).eval().requires_grad_(False)
    is_detector = isinstance(config, DetectionModelConfig)
    graph = (BoxGraph if is_detector else ImageGraph)(own, is_narrow=is_narrow)
    multiple = free_size_multiple(config) if is_free else None
    size = image_size if multiple is None else _example_size(image_size, multiple)
    num_channels = 3 if isinstance(config, DetectionModelConfig) else config.num_channels
    images = torch.zeros(EXAMPLE_BATCH, num_channels, *size)
    arguments: tuple[Tensor, ...] = (images,)
    if is_detector:
        arguments += (torch.tensor([size] * EXAMPLE_BATCH),)
    shapes = _dynamic_shapes(len(arguments), multiple)
    try:
        with quiet(), torch.enable_grad():
            program = _export(graph, arguments, shapes, is_free=multiple is not None)
            folded = fold_constants(_as_graph_module(program))
            program = _export(folded, arguments, shapes, is_free=multiple is not None)
    except Exception as error:  # torch.export has dozens of errors without a base class
        raise ConfigError(
            f"torch.export cannot follow {type(config).family}: {first_line(error)}",
            expected="a model whose operations do not depend on the values of images",
            remedy="Report this as a defect of vitrail, with the settings of the model",
        ) from error
    return Traced(program, *_ports(config, num_channels, size, multiple))


def quiet() -> AbstractContextManager[None]:
    """Silence developer notes of exporters."""
    return _SILENCE.on()


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


_SILENCE = SharedSwitch(_silence)  # of all threads


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error, without colours and full stop."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line.rstrip(".") for line in lines if line), type(error).__name__)


def _export(
    graph: nn.Module,
    arguments: tuple[Tensor, ...],
    shapes: tuple[dict[int, Dim], ...],
    *,
    is_free: bool,
) -> ExportedProgram:
    # What cannot be proved for all sizes is checked at run time instead of being refused.
    return torch.export.export(
        graph, arguments, dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=is_free
    )


def _as_graph_module(program: ExportedProgram) -> fx.GraphModule:
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    return module


def _dynamic_shapes(num_inputs: int, multiple: int | None) -> tuple[dict[int, Dim], ...]:
    batch = Dim("batch", min=1)
    of_images = {0: batch}
    if multiple is not None:
        of_images[2] = multiple * Dim("rows", min=LEAST_CELLS, max=MOST_CELLS)
        of_images[3] = multiple * Dim("columns", min=LEAST_CELLS, max=MOST_CELLS)
    return (of_images, *({0: batch} for _ in range(num_inputs - 1)))


def _example_size(image_size: tuple[int, int], multiple: int) -> tuple[int, int]:
    """Return a nearby size of whole multiples, with different sides so that none is taken for the other."""
    rows, columns = (min(max(-(-length // multiple), LEAST_CELLS), MOST_CELLS - 1) for length in image_size)
    return rows * multiple, (columns + (rows == columns)) * multiple


def _ports(
    config: ImageModelConfig | DetectionModelConfig,
    num_channels: int,
    size: tuple[int, int],
    multiple: int | None,
) -> tuple[tuple[PortSpec, ...], tuple[PortSpec, ...]]:
    axes = size if multiple is None else ("height", "width")
    images = PortSpec(
        name="images",
        dtype="float32",
        axes=("batch", num_channels, *axes),
        multiple_of=multiple or 1,
        at_least=1 if multiple is None else LEAST_CELLS * multiple,
    )
    if not isinstance(config, DetectionModelConfig):
        return (images,), (PortSpec(name="logits", dtype="float32", axes=("batch", config.num_classes)),)
    num_logits = config.num_classes + (config.scoring == "softmax")
    return (
        (images, PortSpec(name="sizes", dtype="int64", axes=("batch", 2))),
        (
            PortSpec(name="logits", dtype="float32", axes=("batch", config.num_queries, num_logits)),
            PortSpec(name="boxes", dtype="float32", axes=("batch", config.num_queries, 4)),
        ),
    )


def _autocast(is_narrow: bool) -> AbstractContextManager[object]:
    return torch.autocast("cpu", dtype=torch.bfloat16) if is_narrow else nullcontext()
