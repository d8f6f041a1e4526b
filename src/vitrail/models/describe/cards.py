"""Model cards: what describes a model before it is used, as plain values."""

from __future__ import annotations

from vitrail.core.config import Config


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
    grid: tuple[int, int] | None = None
    """Rows and columns of a stage's feature map; null for other parts."""
    width: int | None = None
    """Channels of a stage's feature map; null for other parts."""


class AttentionCard(Config):
    """Size of one layer's attention matrices for one input, per head."""

    layer: str
    """Dotted name of the layer."""
    heads: int
    """Number of heads."""
    windows: int
    """Attention windows; 1 without windows."""
    queries: int
    """Queries per window, or in all."""
    keys: int
    """Keys per window, or in all."""
    elements: int
    """Elements of one head's matrices as computed: windows x queries x keys."""
    global_elements: int
    """Elements of one head's matrix if attention were global."""


class Card(Config):
    """What describes any model; costs are per input."""

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


class ImageCard(Card):
    """Card of an image model."""

    image_size: tuple[int, int]
    """Height and width in pixels that the figures are for."""
    native_size: tuple[int, int]
    """Native height and width in pixels."""
    min_size: int
    """Minimum height and width in pixels."""
    num_classes: int
    """Number of logits."""
    size_policy: str
    """What happens to an image that does not divide evenly."""


class DetectionCard(Card):
    """Card of a detection model."""

    image_size: tuple[int, int]
    """Height and width in pixels that the figures are for."""
    native_size: tuple[int, int]
    """Native height and width in pixels."""
    num_classes: int
    """Number of classes, without no object."""
    num_queries: int
    """Number of boxes for each image."""
    size_policy: str
    """What happens to an image that does not divide evenly."""


class TranslationCard(Card):
    """Card of a translation model; costs are of one sentence pair under teacher forcing."""

    num_tokens: tuple[int, int]
    """Subwords of source and target that the figures are for."""
    vocabulary_sizes: tuple[int, int]
    """Subwords of the source and the target language."""


class CaptionCard(Card):
    """Card of a captioning model; costs are of one image and one caption under teacher forcing."""

    image_size: tuple[int, int]
    """Height and width in pixels that the figures are for."""
    native_size: tuple[int, int]
    """Native height and width in pixels."""
    num_tokens: int
    """Caption tokens that the figures are for."""
    vocabulary_size: int
    """Number of tokens."""
    encoder: str
    """Name of the image model that encodes images."""
    size_policy: str
    """What happens to an image that does not divide evenly."""


class ImageTextCard(Card):
    """Card of an image-text model; costs are of one image and one text."""

    image_size: tuple[int, int]
    """Height and width in pixels that the figures are for."""
    native_size: tuple[int, int]
    """Native height and width in pixels."""
    num_tokens: int
    """Maximum subwords of a text, which the figures are for."""
    vocabulary_size: int
    """Number of subwords."""
    embedding_dim: int
    """Width of the joint embedding space."""
    size_policy: str
    """What happens to an image that does not divide evenly."""
