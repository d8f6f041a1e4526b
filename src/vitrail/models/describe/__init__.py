"""The card of a named model: its parts, the cost of a forward pass at any size, and published weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from vitrail.core.errors import ConfigError, DataError
from vitrail.models import MODELS
from vitrail.models.contract import (
    CaptionModelConfig,
    DetectionModelConfig,
    ImageModelConfig,
    ImageTextModelConfig,
    ModelConfig,
    TranslationModelConfig,
)
from vitrail.models.cost import ForwardCost, count_forward, count_parameters, feature_shapes
from vitrail.models.describe.cards import (
    AttentionCard,
    CaptionCard,
    Card,
    DetectionCard,
    ImageCard,
    ImageTextCard,
    PartCard,
    TranslationCard,
)
from vitrail.models.describe.parts import describe_attention, describe_parts, list_modules
from vitrail.models.weights.conversion import SOURCES

__all__ = [
    "AttentionCard",
    "CaptionCard",
    "Card",
    "DetectionCard",
    "ImageCard",
    "ImageTextCard",
    "PartCard",
    "TranslationCard",
    "count_models",
    "describe",
    "list_cards",
    "parse_size",
    "published_weights",
]

SENTENCE_LENGTH = 32  # a long news sentence or caption in subwords; any number would do
CAPTION_LENGTH = 16  # a long caption of an image; likewise


def describe(name: str, *, size: int | tuple[int, int] | None = None) -> Card:
    """Return the card of a model; its figures are for one input, and nothing is computed for them.

    Args:
        size: height and width of an image in pixels, by default the native ones; for translation, subwords of
            source and target, by default 32. One number stands for both.

    Returns:
        An ``ImageCard``, ``DetectionCard``, ``ImageTextCard``, ``CaptionCard`` or ``TranslationCard``.

    Raises:
        ConfigError: unknown model, or a size below one patch or beyond the model's positions.

    Example:
        >>> card = describe("vit_s16", size=384)
        >>> card.parameters, card.attention[0].elements
        (22050664, 332929)
        >>> describe("transformer_base", size=(7, 5)).attention[-1].elements
        35
    """
    config = MODELS[name]
    sizes = (size, size) if isinstance(size, int) else size
    if isinstance(config, ImageModelConfig):
        return _describe_image_model(name, config, sizes or config.image_size)
    if isinstance(config, DetectionModelConfig):
        return _describe_detection_model(name, config, sizes or config.image_size)
    if isinstance(config, ImageTextModelConfig):
        return _describe_image_text_model(name, config, sizes or config.image_size)
    if isinstance(config, CaptionModelConfig):
        return _describe_caption_model(name, config, sizes or config.image_size)
    assert isinstance(config, TranslationModelConfig), f"{name} is neither for images nor for sentences"
    return _describe_translation_model(name, config, sizes or (SENTENCE_LENGTH, SENTENCE_LENGTH))


def count_models() -> Iterator[tuple[str, int]]:
    """Yield the name and number of parameters of each model, family by family."""
    for name in sorted(MODELS, key=lambda name: (MODELS[name].family, name)):
        yield name, count_parameters(MODELS[name].build)


def list_cards() -> Iterator[dict[str, object]]:
    """Yield what the list of models shows of each, as plain JSON values."""
    for name, parameters in count_models():
        config = MODELS[name]
        card = {"name": name, "family": config.family, "paper": config.paper, "parameters": parameters}
        settings = config.model_dump(mode="json")
        of_kind = ("image_size", "source_vocabulary_size", "target_vocabulary_size")
        yield card | {field: settings[field] for field in of_kind if field in settings}


def published_weights(name: str) -> dict[str, tuple[str, ...]]:
    """Return the published architectures whose weights a model takes, by source."""
    found = {
        source: tuple(sorted(theirs for theirs, ours in SOURCES[source].names.items() if ours == name))
        for source in SOURCES
    }
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


def _describe_image_model(name: str, config: ImageModelConfig, size: tuple[int, int]) -> ImageCard:
    if min(size) < config.min_size:
        raise ConfigError(
            f"{name} was to be described for images of {size[0]}x{size[1]} pixels",
            expected=f"at least {config.min_size}x{config.min_size}",
            remedy="Give a larger size",
        )
    with torch.device("meta"):
        model = config.build().eval()
        images = torch.zeros(1, config.num_channels, *size)
    modules = list_modules(model)
    cost = count_forward(model, images, modules)
    shapes = feature_shapes(model, images)
    return ImageCard(
        **_describe_any(name, config, model, cost),
        parts=tuple(describe_parts(model, modules, cost, shapes)),
        image_size=size,
        native_size=config.image_size,
        min_size=config.min_size,
        num_classes=config.num_classes,
        position_policy=config.position_policy,
        size_policy=config.size_policy,
    )


def _describe_detection_model(
    name: str, config: DetectionModelConfig, size: tuple[int, int]
) -> DetectionCard:
    with torch.device("meta"):
        model = config.build().eval()
        images = torch.zeros(1, 3, *size)
    modules = list_modules(model)
    cost = count_forward(model, images, modules)
    return DetectionCard(
        **_describe_any(name, config, model, cost),
        parts=tuple(describe_parts(model, modules, cost, [])),
        image_size=size,
        native_size=config.image_size,
        num_classes=config.num_classes,
        num_queries=config.num_queries,
        position_policy=config.position_policy,
        size_policy=config.size_policy,
    )


def _describe_image_text_model(
    name: str, config: ImageTextModelConfig, size: tuple[int, int]
) -> ImageTextCard:
    with torch.device("meta"):
        model = config.build().eval()
        images = torch.zeros(1, 3, *size)
        tokens = torch.zeros(1, config.max_length, dtype=torch.int64)
        lengths = torch.zeros(1, dtype=torch.int64)
    modules = list_modules(model)
    try:
        cost = count_forward(model, (images, tokens, lengths), modules)
    except DataError as error:  # fewer pixels than one patch
        raise ConfigError(error.given, expected=error.expected, remedy="Give a larger size") from None
    return ImageTextCard(
        **_describe_any(name, config, model, cost),
        parts=tuple(describe_parts(model, modules, cost, [])),
        image_size=size,
        native_size=config.image_size,
        num_tokens=config.max_length,
        vocabulary_size=config.vocabulary_size,
        embedding_dim=config.embedding_dim,
        position_policy=config.position_policy,
        size_policy=config.size_policy,
    )


def _describe_caption_model(name: str, config: CaptionModelConfig, size: tuple[int, int]) -> CaptionCard:
    with torch.device("meta"):
        model = config.build().eval()
        images = torch.zeros(1, config.encoder_config.num_channels, *size)
        caption = torch.zeros(1, 1, CAPTION_LENGTH, dtype=torch.int64)
    modules = list_modules(model)
    try:
        cost = count_forward(model, (images, caption), modules)
    except DataError as error:  # fewer pixels than one patch
        raise ConfigError(error.given, expected=error.expected, remedy="Give a larger size") from None
    return CaptionCard(
        **_describe_any(name, config, model, cost),
        parts=tuple(describe_parts(model, modules, cost, [])),
        image_size=size,
        native_size=config.image_size,
        num_tokens=CAPTION_LENGTH,
        vocabulary_size=config.vocabulary_size,
        encoder=config.encoder,
        position_policy=config.position_policy,
        size_policy=config.size_policy,
    )


def _describe_translation_model(
    name: str, config: TranslationModelConfig, num_tokens: tuple[int, int]
) -> TranslationCard:
    with torch.device("meta"):
        model = config.build().eval()
        source, target = (torch.zeros(1, count, dtype=torch.int64) for count in num_tokens)
        lengths = torch.zeros(1, dtype=torch.int64)
    modules = list_modules(model)
    try:
        cost = count_forward(model, (source, lengths, target), modules)
    except DataError as error:  # a model with learned positions for no more tokens
        raise ConfigError(error.given, expected=error.expected, remedy="Give a smaller size") from None
    return TranslationCard(
        **_describe_any(name, config, model, cost),
        parts=tuple(describe_parts(model, modules, cost, [])),
        num_tokens=num_tokens,
        vocabulary_sizes=(config.source_vocabulary_size, config.target_vocabulary_size),
        position_policy=config.position_policy,
    )


def _describe_any(name: str, config: ModelConfig, model: nn.Module, cost: ForwardCost) -> dict[str, Any]:
    """Return the fields shared by all cards."""
    return {
        "name": name,
        "family": config.family,
        "paper": config.paper,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "macs": sum(part.macs for part in cost.parts.values()),
        "activations": sum(part.activations for part in cost.parts.values()),
        "weight_bytes": sum(parameter.nbytes for parameter in model.parameters()),
        "peak_bytes": cost.peak_bytes,
        "attention": describe_attention(cost),
        "weights": published_weights(name),
    }
