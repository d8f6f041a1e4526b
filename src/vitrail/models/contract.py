"""What every model provides: a config that builds it, and a protocol per kind of input and output.

Images are normalised floats (batch channels height width); boxes are centre, width and height (cxcywh) as
fractions of the image without its padding; text is rows of token ids.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, runtime_checkable

from pydantic import Field, model_validator

from vitrail.core.config import Config, ImageSize
from vitrail.core.errors import ConfigError, DataError, reading
from vitrail.core.tensors import can_read_values

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor, nn

    from vitrail.models.image_encoder import ImageFeatures
    from vitrail.nn.tokens import Images, Tokens

EXAMPLE_SENTENCE_LENGTH = 32  # a long news sentence in subwords; any number would do
EXAMPLE_CAPTION_LENGTH = 16  # a long caption; likewise
MOST_BLOCKS = 512  # of one part; ResNet-1202 has 200 in a stage

# Every model.


class ModelConfig(Config):
    """The frozen config of one family of models; instances in ``VARIANTS`` are the named models."""

    section = ("model",)
    family: ClassVar[str]
    """Name of the family, equal to its file's."""
    paper: ClassVar[str]
    """Authors and year of the paper that the family follows."""
    position_policy: ClassVar[str]
    """How positions are encoded, and how they adapt to another input size or length."""
    size_policy: ClassVar[str] = ""
    """What happens to an image whose height or width does not divide evenly."""

    name: str = ""
    """Name of the registered model that the settings were derived from; empty for others."""

    @model_validator(mode="after")
    def _check_depths(self) -> Self:
        """Refuse so many blocks that building them would take minutes, before anything loops over them."""
        for name, value in chain(self, *(part for _, part in self if isinstance(part, Config))):
            blocks = value if isinstance(value, tuple) else (value,)
            if "depth" in name and sum(map(abs, blocks)) > MOST_BLOCKS:
                raise ValueError(f"{name} {value} is more than {MOST_BLOCKS} blocks")
        return self

    def build(self) -> nn.Module:
        """Return a new model in training mode, its weights drawn from torch's default generator."""
        raise NotImplementedError

    def example_inputs(self, batch_size: int, size: tuple[int, int] | None = None) -> tuple[Tensor, ...]:
        """Return arguments of the forward pass, for counting, tracing, timing and comparing.

        They are on torch's default device (``with torch.device("meta")`` to count), the same at every call,
        and draw no random numbers.

        Args:
            size: height and width of the images, by default ``image_size``; for translation, the tokens of
                source and target.
        """
        raise NotImplementedError


# Classification: images to logits. Images are normalised floats of any size of at least one patch:
# no model refuses a size that it was not made for, it pads the image or resizes its positions.


class ImageModelConfig(ModelConfig):
    """Settings shared by all image models."""

    image_size: ImageSize = (224, 224)
    """Native height and width in pixels; other sizes work, too. 224 and 224x192 can be given as well."""
    num_channels: int = Field(default=3, ge=1)
    """Image channels."""
    num_classes: int = Field(default=1000, ge=1)
    """Number of logits."""

    @property
    def min_size(self) -> int:
        """Minimum height and width of an image in pixels: one patch of the first layer, if it has patches."""
        return int(vars(self).get("patch_size", 1))  # torch.compile cannot trace getattr with a default

    def example_inputs(self, batch_size: int, size: tuple[int, int] | None = None) -> tuple[Tensor]:
        return (_example_images(batch_size, self.num_channels, size or self.image_size),)


# Detection: images to boxes.


Scoring = Literal["softmax", "sigmoid"]
"""How logits become scores: a softmax over the classes and, last, "no object", or a sigmoid per class."""


class DetectionModelConfig(ModelConfig):
    """Settings shared by all detection models."""

    scoring: ClassVar[Scoring]

    image_size: ImageSize = (800, 1333)
    """Native height and width in pixels; other sizes work, too."""
    num_classes: int = Field(default=91, ge=1)
    """Number of classes, without no object."""
    num_queries: int = Field(default=100, ge=1)
    """Number of predicted boxes per image."""
    backbone: str | None = None
    """Name of an image model whose feature maps are read, such as resnet50; null builds the detector's own
    backbone."""
    backbone_changes: dict[str, Any] = Field(default_factory=dict)
    """Settings of that model that differ from its named ones."""

    @property
    def backbone_config(self) -> ImageModelConfig:
        """Settings of the named backbone.

        Raises:
            ConfigError: unknown image model or settings.
        """
        assert self.backbone is not None, "a detector with a backbone of its own"
        changes = {"image_size": self.image_size, **self.backbone_changes}
        return find_image_model("backbone", self.backbone).with_changes(changes)

    def example_inputs(self, batch_size: int, size: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
        """Return images and their sizes, without padding."""
        import torch

        images = _example_images(batch_size, 3, size or self.image_size)
        return images, torch.tensor([images.shape[2:]] * batch_size)


class BoxTargets(NamedTuple):
    """Ground-truth boxes of a batch, padded to the longest row."""

    labels: Int[Tensor, "batch boxes"]
    """Class of each box; arbitrary in the padding."""
    boxes: Float[Tensor, "batch boxes 4"]
    """Boxes; arbitrary in the padding."""
    counts: Int[Tensor, " batch"]
    """Boxes of each image, which come first in its row; may be 0."""


class AuxiliaryOutput(NamedTuple):
    """Further predictions that are only used in the loss."""

    logits: Float[Tensor, "batch queries classes"]
    boxes: Float[Tensor, "batch queries 4"]
    num_matches: int = 1
    """Predictions matched with each ground-truth box: one, or several (one-to-many)."""
    assigned: Int[Tensor, "batch queries"] | None = None
    """Index of the ground-truth box of each prediction where it is known without matching (denoising
    queries): -1 for no object, -2 for padding that does not count. None where boxes are matched."""
    weight: float = 1.0
    """Weight of its loss, relative to that of the final predictions."""


class DetectionOutput(NamedTuple):
    """Predictions of a detection model."""

    logits: Float[Tensor, "batch queries classes"]
    """Of each query; with a softmax, the last class is no object."""
    boxes: Float[Tensor, "batch queries 4"]
    auxiliary: tuple[AuxiliaryOutput, ...] = ()
    """Of earlier layers, and others; empty in evaluation mode."""


def class_scores(
    logits: Float[Tensor, "*batch queries logits"], scoring: Scoring
) -> Float[Tensor, "*batch queries classes"]:
    """Turn a detector's logits into the score of each class, in float32, without no object."""
    if scoring == "softmax":
        return logits.float().softmax(dim=-1)[..., :-1]
    return logits.float().sigmoid()


@runtime_checkable
class DetectionModel(Protocol):
    """What tasks, prediction and interpretation may use of a detection model."""

    config: DetectionModelConfig

    def __call__(
        self,
        images: Float[Tensor, "batch 3 height width"],
        sizes: Int[Tensor, "batch 2"] | None = None,
        targets: BoxTargets | None = None,
    ) -> DetectionOutput:
        """Predict the boxes of each image.

        Args:
            images: each at the top left of its canvas, followed by padding.
            sizes: height and width of each image in pixels, without the padding; None without padding.
            targets: ground truth for denoising in training; ignored in evaluation mode and by other models.
        """


# Sequences: token by token.


@runtime_checkable
class DecoderState(Protocol):
    """What a sequence model remembers between two decoding steps: one row per hypothesis.

    The hypotheses of a sentence are neighbouring rows, equally many for each sentence. What depends on the
    sentence alone, such as its encoding, is held once.
    """

    @property
    def num_rows(self) -> int:
        """Hypotheses of all sentences."""

    def expand(self, count: int) -> Self:
        """Return a state with each hypothesis repeated ``count`` times, before they diverge."""

    def select(self, rows: Int[Tensor, " rows"]) -> Self:
        """Return a state whose row ``i`` continues row ``rows[i]``, of the same sentence."""

    def keep(self, sentences: Int[Tensor, " kept"]) -> Self:
        """Return a state with all rows of some sentences, in that order."""


@runtime_checkable
class SequenceModel(Protocol):
    """What decoding may use of a model that writes a sequence token by token.

    The model creates the first state itself: ``start(source, source_lengths)`` of a translation model.
    """

    def step(
        self, tokens: Int[Tensor, " rows"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows vocabulary"], DecoderState]:
        """Return the next-token logits after the newest token of each row, and the new state."""


# Translation: sentences to sentences.


class TokenModelConfig(ModelConfig):
    """Settings shared by all models of texts, which are rows of subword ids."""

    pad_id: int = Field(default=0, ge=0)
    """Padding token."""
    begin_id: int = Field(default=1, ge=0)
    """First token of a text, or first input token of a decoder."""
    end_id: int = Field(default=2, ge=0)
    """Last token of a text, of a translation's source as well."""

    @model_validator(mode="after")
    def _check_token_ids(self) -> Self:
        names = "source_vocabulary_size", "target_vocabulary_size", "vocabulary_size"
        sizes = [getattr(self, name) for name in names if hasattr(self, name)]
        for name in ("pad_id", "begin_id", "end_id"):
            if getattr(self, name) >= min(sizes):
                whole = "both vocabularies" if len(sizes) > 1 else f"the {sizes[0]} subwords"
                raise ValueError(f"{name} {getattr(self, name)} is not an id of {whole}")
        return self


class TranslationModelConfig(TokenModelConfig):
    """Settings shared by all translation models; sentences are subword ids."""

    source_vocabulary_size: int = Field(default=37_000, ge=4)
    """Subwords of the source language; Vaswani et al. 2017, section 5.1."""
    target_vocabulary_size: int = Field(default=37_000, ge=4)
    """Subwords of the target language, the width of the logits."""
    tie: Literal["none", "output", "all"] = "all"
    """Tied matrices (Press and Wolf 2017): none; target embedding and output; or source embedding, too, which
    needs vocabularies of equal size."""

    @model_validator(mode="after")
    def _check_vocabularies(self) -> Self:
        sizes = self.source_vocabulary_size, self.target_vocabulary_size
        if self.tie == "all" and sizes[0] != sizes[1]:
            raise ValueError(
                f"tie 'all' needs vocabularies of equal size, not {sizes[0]} and {sizes[1]}; use tie 'output'"
            )
        return self

    def example_inputs(
        self, batch_size: int, size: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return sources, their lengths, and targets; without padding."""
        import torch

        source_tokens, target_tokens = size or (EXAMPLE_SENTENCE_LENGTH, EXAMPLE_SENTENCE_LENGTH)
        source = _example_tokens((batch_size, source_tokens), self.source_vocabulary_size)
        target = _example_tokens((batch_size, target_tokens), self.target_vocabulary_size)
        return source, torch.full((batch_size,), source_tokens), target


@runtime_checkable
class TranslationModel(SequenceModel, Protocol):
    """What tasks, decoding and interpretation may use of a translation model.

    A source row ends with ``end_id``; what follows after ``source_lengths`` is padding and changes nothing.
    """

    config: TranslationModelConfig

    def __call__(
        self,
        source: Int[Tensor, "batch source_tokens"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target_tokens"],
    ) -> Float[Tensor, "batch target_tokens vocabulary"]:
        """Return next-token logits under teacher forcing; targets start with ``begin_id``."""

    def start(
        self, source: Int[Tensor, "batch source_tokens"], source_lengths: Int[Tensor, " batch"]
    ) -> DecoderState:
        """Encode the sentences, and return the state before the first step, one row per sentence."""


# Captioning: images to sentences.


class CaptionModelConfig(TokenModelConfig):
    """Settings shared by all captioning models; captions are token ids."""

    size_policy: ClassVar[str] = "the encoder's"

    vocabulary_size: int = Field(default=10_000, ge=5)
    """Number of tokens, the width of the logits."""
    image_size: ImageSize = (224, 224)
    """Native height and width of the encoder in pixels."""
    encoder: str = "resnet18"
    """Name of the image model that encodes images."""
    encoder_changes: dict[str, Any] = Field(default_factory=dict)
    """Settings of the encoder that differ from its named ones."""
    encoder_stage: int = Field(default=-1, le=-1)
    """Stage of the encoder that is read, counted from the last; later ones are left out. The last but one has
    four times as many positions."""
    encoder_frozen: bool = False
    """Whether the encoder keeps its initial weights and stays in evaluation mode."""
    pool: int = Field(default=1, ge=1)
    """Average-pool the encoder's feature map over squares of so many rows and columns."""

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        reserved = {"image_size", "name"} & set(self.encoder_changes)
        if reserved:
            raise ValueError(f"encoder_changes sets {', '.join(sorted(reserved))}; the captioner's own count")
        return self

    @property
    def encoder_config(self) -> ImageModelConfig:
        """Settings of the encoder.

        Raises:
            ConfigError: unknown image model or settings.
        """
        config = find_image_model("encoder", self.encoder)
        return config.with_changes({**self.encoder_changes, "image_size": self.image_size})

    def example_inputs(self, batch_size: int, size: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
        channels = self.encoder_config.num_channels
        images = _example_images(batch_size, channels, size or self.image_size)
        return images, _example_tokens((batch_size, 1, EXAMPLE_CAPTION_LENGTH), self.vocabulary_size)


class CaptionOutput(NamedTuple):
    """Predictions of a captioning model."""

    logits: Float[Tensor, "batch captions tokens vocabulary"]
    """Next-token logits."""
    attention: Float[Tensor, "batch captions tokens positions"] | None
    """Attention weights of each step, for a regularising loss; None for decoders with several heads, for
    which there is no such loss."""


@runtime_checkable
class CaptionModel(SequenceModel, Protocol):
    """What tasks, decoding and interpretation may use of a captioning model.

    Inputs are normalised images (batch channels height width), or the features that ``encode`` returned
    (batch positions dim), such as stored ones of a frozen encoder.
    """

    config: CaptionModelConfig

    def __call__(
        self, images: Float[Tensor, "batch ..."], captions: Int[Tensor, "batch captions tokens"]
    ) -> CaptionOutput:
        """Return logits under teacher forcing.

        Args:
            captions: several per image; each starts with ``begin_id``, and padding after it does not change
                what is before it.
        """

    def encode(self, images: Images) -> ImageFeatures:
        """Return the encoder's features; without gradients if it is frozen."""

    def start(self, images: Float[Tensor, "batch ..."]) -> DecoderState:
        """Encode the images, and return the state before the first step, one row per image."""


# Labelling: texts to labels of sentences or words.


class LabellingModelConfig(TokenModelConfig):
    """Settings shared by all models that label texts; texts are subword ids."""

    vocabulary_size: int = Field(default=8000, ge=4)
    """Number of subwords."""
    num_classes: int = Field(default=2, ge=1)
    """Number of labels."""
    labels: Literal["sentence", "words"] = "sentence"
    """What has a label: each sentence (many to one), or each of its words (many to many in step)."""
    max_length: int = Field(default=512, ge=3)
    """Maximum tokens of a text, begin and end included, where positions or a mixer have weights for each."""

    def example_inputs(self, batch_size: int, size: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
        """Return texts and their lengths, without padding."""
        import torch

        num_tokens = size[0] if size else min(EXAMPLE_SENTENCE_LENGTH, self.max_length)
        tokens = _example_tokens((batch_size, num_tokens), self.vocabulary_size)
        return tokens, torch.full((batch_size,), num_tokens)


@runtime_checkable
class LabellingModel(Protocol):
    """What tasks and interpretation may use of a model that labels texts.

    A row is ``begin_id``, subwords and ``end_id``; what follows after its length is padding that
    changes nothing.
    """

    config: LabellingModelConfig

    def __call__(
        self, tokens: Int[Tensor, "texts tokens"], lengths: Int[Tensor, " texts"]
    ) -> Float[Tensor, "texts *tokens classes"]:
        """Return the logits of each text, or of each token where words have labels."""

    def states(self, tokens: Int[Tensor, "texts tokens"], lengths: Int[Tensor, " texts"]) -> Tokens:
        """Return the contextual embedding of each token; meaningless in the padding."""


# Image-text models: images and texts to embeddings.


class ImageTextModelConfig(TokenModelConfig):
    """Settings shared by all image-text models; texts are subword ids."""

    image_size: ImageSize = (224, 224)
    """Native height and width in pixels; other sizes work, too."""
    embedding_dim: int = Field(default=512, ge=1)
    """Width of the joint embedding space."""
    vocabulary_size: int = Field(default=49_408, ge=4)
    """Number of subwords."""
    max_length: int = Field(default=77, ge=3)
    """Maximum subwords of a text, begin and end included."""
    begin_id: int = Field(default=49_406, ge=0)
    """First token of a text."""
    end_id: int = Field(default=49_407, ge=0)
    """End token, whose output becomes the embedding."""

    def example_inputs(
        self, batch_size: int, size: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return images, as many texts of maximum length, and their lengths."""
        import torch

        images = _example_images(batch_size, 3, size or self.image_size)
        tokens = _example_tokens((batch_size, self.max_length), self.vocabulary_size)
        return images, tokens, torch.full((batch_size,), self.max_length)


class ImageTextOutput(NamedTuple):
    """Embeddings of images and texts, of length one, in float32."""

    images: Float[Tensor, "images dim"]
    texts: Float[Tensor, "texts dim"]
    scale: Float[Tensor, ""]
    """Factor from cosines to logits."""


@runtime_checkable
class ImageTextModel(Protocol):
    """What tasks, classification and interpretation may use of an image-text model."""

    config: ImageTextModelConfig

    @property
    def scale(self) -> Float[Tensor, ""]:
        """Factor from cosines to logits."""

    def __call__(
        self,
        images: Float[Tensor, "images channels height width"],
        tokens: Int[Tensor, "texts tokens"],
        lengths: Int[Tensor, " texts"],
    ) -> ImageTextOutput:
        """Return the embeddings of images and of texts, whose numbers may differ.

        Args:
            tokens: ``begin_id``, subwords and ``end_id`` of each text, then padding, which changes nothing.
        """

    def embed_images(self, images: Images) -> Float[Tensor, "images dim"]:
        """Return image embeddings of length one."""

    def embed_texts(
        self, tokens: Int[Tensor, "texts tokens"], lengths: Int[Tensor, " texts"]
    ) -> Float[Tensor, "texts dim"]:
        """Return text embeddings of length one."""


def building(config: ModelConfig) -> AbstractContextManager[None]:
    """Turn what torch raises of tensors that are too large into an error about the settings."""
    source, remedy = f"the {config.family} model of these settings", "Choose smaller sizes"
    expected = "tensors that fit into memory"
    return reading(source, expected=expected, remedy=remedy, error=ConfigError, done="built")


def find_image_model(setting: str, name: str) -> ImageModelConfig:
    """Return the settings of the named image model that a setting of another model names.

    Raises:
        ConfigError: there is no such model of images.
    """
    from vitrail.models import MODELS  # which imports this folder

    config = MODELS[name]
    if not isinstance(config, ImageModelConfig):
        raise ConfigError(
            f"model.{setting} is {name}, which is not a model of images alone",
            expected="a model of images, such as resnet18 or vit_s16",
            remedy="Choose one; vitrail models lists them",
        )
    return config


# Checks of inputs.


def check_images(images: Tensor, config: ImageModelConfig) -> None:
    """Check that images fit a model.

    Raises:
        DataError: as ``check_values``, or the images have fewer pixels than one patch.
    """
    check_values(images, config.num_channels)
    rows, columns = images.shape[2:]
    if min(rows, columns) < config.min_size:
        raise DataError(
            f"images of {rows}x{columns} pixels",
            expected=f"at least {config.min_size}x{config.min_size}, one patch of {type(config).family}",
            remedy="Enlarge the images, or choose a model with smaller patches",
        )


def check_values(images: Tensor, num_channels: int) -> None:
    """Check that images are normalised floats; values only where ``can_read_values``.

    Raises:
        DataError: the images are not floats or not four-dimensional, contain NaN or infinite values, or have
            other channels.
    """
    shape = tuple(images.shape)
    if len(shape) != 4:
        raise DataError(
            f"images of shape {shape}",
            expected="four axes: batch, channels, height, width",
            remedy="Add a batch axis to a single image with images[None]",
        )
    if not images.is_floating_point():
        raise DataError(
            f"images of type {images.dtype}",
            expected="normalised floating-point values",
            remedy="Divide by 255 and normalise, as vitrail.Predictor does",
        )
    if can_read_values(images) and not images.sum().isfinite():
        raise DataError(
            "images that contain NaN or infinite values",
            expected="finite values, normalised",
            remedy="Find them with images.isfinite(); a division by a standard deviation of zero makes them",
        )
    if shape[1] != num_channels:
        raise DataError(
            f"images with {shape[1]} channels, in a batch of shape {shape}",
            expected=f"{num_channels} channels in the second axis",
            remedy="Convert the images, or build a model of images with num_channels="
            f"{shape[1]}; images whose channels stand last need permute(0, 3, 1, 2)",
        )


def check_inputs(images: Tensor, sizes: Tensor | None) -> None:
    """Check a detector's images and sizes; values only where ``can_read_values``.

    Raises:
        DataError: as ``check_values``; or sizes are not integers, a height and width per image, between one
            pixel and the canvas.
    """
    check_values(images, 3)
    if sizes is None:
        return
    batch_size, canvas = images.shape[0], images.shape[2:]
    if tuple(sizes.shape) != (batch_size, 2) or sizes.is_floating_point():
        raise DataError(
            f"sizes of type {sizes.dtype} and shape {tuple(sizes.shape)} for {batch_size} images",
            expected="whole numbers of pixels, a height and a width for each image",
            remedy="Give the sizes as a tensor of integers of shape (batch, 2), or none without padding",
        )
    if can_read_values(sizes) and ((sizes < 1).any() or (sizes > sizes.new_tensor(canvas)).any()):
        raise DataError(
            f"sizes {sizes.tolist()} of images that lie in {canvas[0]}x{canvas[1]} pixels",
            expected="heights and widths of at least one pixel, and no more than there are",
            remedy="Give each image's own height and width, in this order, without its padding",
        )


def is_padded(images: Tensor, sizes: Tensor | None) -> bool:
    """Tell whether any image may be padded; True where values cannot be read."""
    if sizes is None:
        return False
    return not can_read_values(sizes) or bool((sizes < sizes.new_tensor(images.shape[2:])).any())


def check_texts(tokens: Tensor, lengths: Tensor) -> None:
    """Check rows of subwords and their lengths; values only where ``can_read_values``.

    Raises:
        DataError: there is not one length for each row, or one is below one or beyond the row.
    """
    if tokens.ndim != 2 or tuple(lengths.shape) != (tokens.shape[0],):
        raise DataError(
            f"tokens of shape {tuple(tokens.shape)} with lengths of shape {tuple(lengths.shape)}",
            expected="one row of tokens and one length for each text",
            remedy="Make both with vitrail.data.text.rows.join_rows",
        )
    if not can_read_values(lengths) or not len(lengths):
        return
    if int(lengths.min()) < 1 or int(lengths.max()) > tokens.shape[1]:
        raise DataError(
            f"texts of {int(lengths.min())} to {int(lengths.max())} tokens in rows of {tokens.shape[1]}",
            expected="lengths between one and the rows' own",
            remedy="Count the tokens of each text with the one that begins and the one that ends it",
        )


def _example_images(batch_size: int, num_channels: int, size: tuple[int, int]) -> Tensor:
    import torch

    shape = (batch_size, num_channels, *size)
    return torch.arange(math.prod(shape), dtype=torch.float32).sin().reshape(shape)


def _example_tokens(shape: tuple[int, ...], vocabulary_size: int) -> Tensor:
    import torch

    return torch.arange(math.prod(shape)).remainder(vocabulary_size).reshape(shape)
