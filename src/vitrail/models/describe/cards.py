"""What there is to know about a model before it is used, as plain values."""

from __future__ import annotations

from vitrail.core.config import Config


class PartCard(Config):
    """One part of a model."""

    name: str
    """Name of the part."""
    parameters: int
    """Number of parameters."""
    macs: int
    """Multiply-accumulates of convolutions and matrix products for one input."""
    activations: int
    """Elements written by convolutions, linear layers and attention for one input."""
    grid: tuple[int, int] | None = None
    """Rows and columns of the positions that a stage of an image model leaves; null for other parts."""
    width: int | None = None
    """Channels of each position of a stage; null for other parts."""


class AttentionCard(Config):
    """The matrix of one layer's attention for one input; each head has one."""

    layer: str
    """Dotted name of the layer."""
    heads: int
    """Number of heads."""
    windows: int
    """Parts of the image that are attended separately; 1 where it is not cut."""
    queries: int
    """Queries of a window, or of the input."""
    keys: int
    """Keys of a window, or of the input."""
    elements: int
    """Elements of one head's matrices as computed: windows x queries x keys."""
    global_elements: int
    """Elements of one head's matrix if every token of the layer's grid or sequence saw every other."""


class Card(Config):
    """What there is to know about any model."""

    name: str
    """Name of the model."""
    family: str
    """Name of its family."""
    paper: str
    """Authors and year of what the family follows."""
    parameters: int
    """Number of parameters."""
    macs: int
    """Multiply-accumulates of convolutions and matrix products for one input."""
    activations: int
    """Elements written by convolutions, linear layers and attention for one input."""
    weight_bytes: int
    """Bytes of all parameters in float32."""
    peak_bytes: int
    """The most bytes that weights and intermediate results of a forward pass of one input take at one time
    in float32; estimated from the shapes of all tensors, without what kernels take for themselves."""
    parts: tuple[PartCard, ...]
    """From the input to the logits."""
    attention: tuple[AttentionCard, ...]
    """In the order in which the layers run; empty where there is no attention."""
    position_policy: str
    """How the model knows where a token stands, and what happens to it at another size."""
    weights: dict[str, tuple[str, ...]]
    """Published architectures whose weights the model takes, by their source."""


class ImageCard(Card):
    """What there is to know about a model of images; its costs are those of one image."""

    image_size: tuple[int, int]
    """Height and width in pixels that the figures are for."""
    native_size: tuple[int, int]
    """Height and width in pixels that the model is made for."""
    min_size: int
    """The smallest height and width in pixels."""
    num_classes: int
    """Number of logits."""
    size_policy: str
    """What becomes of an image that does not divide evenly."""


class DetectionCard(Card):
    """What there is to know about a model that detects objects; its costs are those of one image."""

    image_size: tuple[int, int]
    """Height and width in pixels that the figures are for."""
    native_size: tuple[int, int]
    """Height and width in pixels that the model is made for."""
    num_classes: int
    """Number of classes, without the one that stands for no object."""
    num_queries: int
    """Number of boxes for each image."""
    size_policy: str
    """What becomes of an image that does not divide evenly."""


class TranslationCard(Card):
    """What there is to know about a model that translates.

    Its costs are those of one sentence and its whole translation in one forward pass, as in training.
    """

    num_tokens: tuple[int, int]
    """Subwords of the source and of the target sentence that the figures are for."""
    vocabulary_sizes: tuple[int, int]
    """Number of subwords of the source and the target language."""


class CaptionCard(Card):
    """What there is to know about a model that captions images.

    Its costs are those of one image and one caption in one forward pass, as in training.
    """

    image_size: tuple[int, int]
    """Height and width in pixels that the figures are for."""
    native_size: tuple[int, int]
    """Height and width in pixels that the model is made for."""
    num_tokens: int
    """Tokens of the caption that the figures are for."""
    vocabulary_size: int
    """Number of tokens."""
    encoder: str
    """Name of the image model whose positions are read."""
    size_policy: str
    """What becomes of an image that does not divide evenly."""


class ImageTextCard(Card):
    """What there is to know about a model of images and texts; its costs are those of one of each."""

    image_size: tuple[int, int]
    """Height and width in pixels that the figures are for."""
    native_size: tuple[int, int]
    """Height and width in pixels that the model is made for."""
    num_tokens: int
    """Subwords of the text that the figures are for, the most that the model reads."""
    vocabulary_size: int
    """Number of subwords."""
    embedding_dim: int
    """Width of the space in which both are compared."""
    size_policy: str
    """What becomes of an image that does not divide evenly."""
