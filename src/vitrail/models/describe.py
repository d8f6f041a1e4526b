"""The card of a named model: its parts, the cost of a forward pass at any size, and published weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from vitrail.core.config import Config
from vitrail.core.errors import ConfigError, DataError
from vitrail.models import MODELS, configure
from vitrail.models import cost as costs
from vitrail.models.contract import (
    ImageModelConfig,
    ImageTextModelConfig,
    LabellingModelConfig,
    TranslationModelConfig,
)
from vitrail.models.cost import AttentionCard, ForwardCost, PartCost
from vitrail.models.weights.conversion import SOURCES
from vitrail.models.weights.marian import REPOSITORIES, VARIANT
from vitrail.nn.tokens import Grid


class PartCard(Config):
    """One part of a model; costs are per input."""

    name: str
    """Name of the part."""
    parameters: int
    """Number of parameters."""
    macs: int
    """Multiply-accumulates of convolutions and matrix products."""
    activations: int
    """Elements written by convolutions, linear layers and attention."""
    grid: Grid | None = None
    """Rows and columns of a stage's feature map; null for other parts."""
    width: int | None = None
    """Channels of a stage's feature map; null for other parts."""


class Card(Config):
    """What describes a model; costs are per image, text or pair of them, under teacher forcing."""

    name: str
    """Name of the model."""
    family: str
    """Name of its family."""
    paper: str
    """Authors and year of the paper that the family follows."""
    parameters: int
    """Number of parameters."""
    macs: int
    """Multiply-accumulates of convolutions and matrix products."""
    activations: int
    """Elements written by convolutions, linear layers and attention."""
    weight_bytes: int
    """Bytes of all parameters in float32."""
    peak_bytes: int
    """Peak memory of weights and intermediate results of a forward pass in float32; estimated from tensor
    shapes, without the kernels' workspace."""
    parts: tuple[PartCard, ...]
    """From the input to the logits."""
    attention: tuple[AttentionCard, ...]
    """In execution order; empty without attention."""
    position_policy: str
    """How positions are encoded, and how they adapt to another input size."""
    weights: dict[str, tuple[str, ...]]
    """Published architectures whose weights the model takes, by source."""
    image_size: tuple[int, int] | None = None
    """Height and width in pixels that the figures are for; null without images, as the next three."""
    native_size: tuple[int, int] | None = None
    """Native height and width in pixels."""
    size_policy: str | None = None
    """What happens to an image that does not divide evenly."""
    min_size: int | None = None
    """Minimum height and width in pixels, of models of images alone."""
    num_tokens: int | tuple[int, int] | None = None
    """Subwords of the text that the figures are for, of a translation source and target; null without."""
    vocabulary_size: int | None = None
    """Number of subwords; null without texts, and of a translation."""
    vocabulary_sizes: tuple[int, int] | None = None
    """Subwords of the source and the target language of a translation."""
    num_classes: int | None = None
    """Number of classes, of a detector without no object."""
    num_queries: int | None = None
    """Number of boxes for each image, of detectors."""
    encoder: str | None = None
    """Name of the image model that encodes images, of captioners."""
    embedding_dim: int | None = None
    """Width of the joint embedding space of images and texts."""


def describe(
    name: str, *, size: int | tuple[int, int] | None = None, changes: Mapping[str, Any] | None = None
) -> Card:
    """Return the card of a model; its figures are for one input, and nothing is computed for them.

    Args:
        size: height and width of an image in pixels, by default the native ones; for texts, subwords, of a
            translation read and written, by default 32. One number stands for both.
        changes: settings that differ from the named model's; published weights are for none but its own.

    Raises:
        ConfigError: unknown model or setting, a value that does not fit, or a size below one patch or beyond
            the model's positions.

    Example:
        >>> card = describe("vit_s16", size=384)
        >>> card.parameters, card.attention[0].elements
        (22050664, 332929)
        >>> describe("transformer_base", size=(7, 5)).attention[-1].elements
        35
        >>> describe("vit_s16", changes={"patch_size": 1}).attention[0].queries
        50177
    """
    config = configure(name, **(changes or {}))
    sizes = (size, size) if isinstance(size, int) else size
    model, inputs = costs.build_on_meta(config, sizes)
    modules = _list_modules(model)
    try:
        cost = costs.count_forward(model, inputs, modules)
    except DataError as error:  # fewer pixels than one patch, or more tokens than learned positions
        is_text = isinstance(config, TranslationModelConfig | LabellingModelConfig)
        change = "smaller" if is_text else "larger"
        raise ConfigError(error.given, expected=error.expected, remedy=f"Give a {change} size") from None
    shapes = costs.feature_shapes(model, inputs[0]) if isinstance(config, ImageModelConfig) else []
    lengths = [each.shape[-1] for each in inputs if each.ndim > 1 and not each.is_floating_point()]
    known: dict[str, Any] = {
        "name": name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "macs": cost.macs,
        "activations": sum(part.activations for part in cost.parts.values()),
        "weight_bytes": sum(parameter.nbytes for parameter in model.parameters()),
        "peak_bytes": cost.peak_bytes,
        "parts": tuple(_describe_parts(model, modules, cost, shapes)),
        "attention": tuple(cost.attention),
        "weights": {} if changes else published_weights(name),
        "image_size": tuple(inputs[0].shape[2:]) if inputs[0].ndim == 4 else None,
        "native_size": getattr(config, "image_size", None),
        "size_policy": config.size_policy or None,
        "embedding_dim": config.embedding_dim if isinstance(config, ImageTextModelConfig) else None,
        "num_tokens": tuple(lengths) if len(lengths) == 2 else next(iter(lengths), None),
    }
    if isinstance(config, TranslationModelConfig):
        known["vocabulary_sizes"] = config.source_vocabulary_size, config.target_vocabulary_size
    return Card(**{field: known.get(field, getattr(config, field, None)) for field in Card.model_fields})


def list_cards() -> Iterator[dict[str, Any]]:
    """Yield what the list of models shows of each, family by family, as plain JSON values."""
    for config in sorted(MODELS.values(), key=lambda config: (config.family, config.name)):
        card = {"name": config.name, "family": config.family, "paper": config.paper}
        settings = config.model_dump(mode="json")
        of_kind = ("image_size", "source_vocabulary_size", "target_vocabulary_size")
        sizes = {field: settings[field] for field in of_kind if field in settings}
        yield card | {"parameters": costs.count_parameters(config.build)} | sizes


def published_weights(name: str) -> dict[str, tuple[str, ...]]:
    """Return the published architectures whose weights a model takes, by source."""
    found = {
        source: tuple(sorted(theirs for theirs, ours in SOURCES[source].names.items() if ours == name))
        for source in SOURCES
    }
    if name == VARIANT:  # Marian models have their own sizes, so no architecture stands in a key table
        found["hf"] = (*found["hf"], REPOSITORIES)
    return {source: names for source, names in found.items() if names}


def parse_size(text: str) -> tuple[int, int]:
    """Parse ``384`` or ``384x512`` as height and width, or as subwords of source and target.

    Raises:
        ConfigError: the text is neither.

    Example:
        >>> parse_size("384x512")
        (384, 512)
    """
    found = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", text.strip())
    if found is None:
        raise ConfigError(
            f"the size {text!r}",
            expected="one number, or two such as height x width, as in 384 or 384x512",
            remedy="Write the size without spaces",
        )
    return int(found[1]), int(found[2] or found[1])


def _list_modules(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Return the modules of each part of a model, in execution order."""
    parts: dict[str, list[nn.Module]] = {}
    for name, child in model.named_children():
        if name == "stages":
            parts |= {f"stage {index}": [stage] for index, stage in enumerate(child.children(), start=1)}
        elif isinstance(child, nn.ModuleList):
            parts[f"{len(child)} blocks" if name == "blocks" else f"{name}, {len(child)} blocks"] = [*child]
        else:
            parts[name] = [child]
    return parts


def _describe_parts(
    model: nn.Module, modules: dict[str, list[nn.Module]], cost: ForwardCost, shapes: list[torch.Size]
) -> Iterator[PartCard]:
    """Yield the parts that have parameters or cost, and what runs outside all parts.

    Args:
        shapes: of the feature map of each stage; empty for models without stages.
    """
    left = iter(shapes)
    # Parameters outside all modules, such as class tokens, stand before the first stage, or last.
    own = [
        PartCard(name=name, parameters=parameter.numel(), macs=0, activations=0)
        for name, parameter in model.named_parameters(recurse=False)
    ]
    for name, members in modules.items():
        done = cost.parts.get(name, PartCost())
        parameters = sum(parameter.numel() for module in members for parameter in module.parameters())
        shape = next(left, None) if "blocks" in name or name.startswith("stage ") else None
        if shape is not None:
            yield from own
            own = []
            grid, width = shape[-2:], shape[1]
            yield PartCard(name=name, parameters=parameters, **done._asdict(), grid=grid, width=width)
        elif parameters or done.macs:
            yield PartCard(name=name, parameters=parameters, **done._asdict())
    yield from own
    if "" in cost.parts:
        yield PartCard(name="other", parameters=0, **cost.parts[""]._asdict())
