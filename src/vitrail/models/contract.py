"""What every model has: settings that build it, and the ways through image and through sequence models."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self, runtime_checkable

from pydantic import Field, model_validator

from vitrail.core.config import Config, ImageSize
from vitrail.core.errors import DataError

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor, nn


class ModelConfig(Config):
    """The settings of one family of models, frozen; its instances in ``VARIANTS`` are the named models."""

    family: ClassVar[str]
    """Name of the family, the same as its file's."""
    paper: ClassVar[str]
    """Authors and year of what the family follows."""

    def build(self) -> nn.Module:
        """Return a new model with fresh weights from torch's default generator, in training mode."""
        raise NotImplementedError


class ImageModelConfig(ModelConfig):
    """The settings that all image models share."""

    position_policy: ClassVar[str]
    """How the family tells the model where a token stands, and what happens to it at another size."""
    size_policy: ClassVar[str]
    """What the family does with an image whose height or width does not divide evenly."""

    image_size: ImageSize = (224, 224)
    """Height and width in pixels that the model is made for; it takes others, too. 224 and 224x192 can be
    given as well."""
    num_channels: int = Field(default=3, ge=1)
    """Channels of the image."""
    num_classes: int = Field(default=1000, ge=1)
    """Number of logits."""

    @property
    def min_size(self) -> int:
        """The smallest height and width of an image in pixels: one patch of the first layer."""
        raise NotImplementedError


class TranslationModelConfig(ModelConfig):
    """The settings that all translation models share; sentences come as numbers of subwords."""

    position_policy: ClassVar[str]
    """How the family tells the model where a token stands, and how long a sentence may be."""

    source_vocabulary_size: int = Field(default=37_000, ge=4)
    """Number of subwords of the source language; Vaswani et al. 2017, section 5.1."""
    target_vocabulary_size: int = Field(default=37_000, ge=4)
    """Number of subwords of the target language, the width of the logits."""
    pad_id: int = Field(default=0, ge=0)
    """Number that fills a row behind its sentence."""
    begin_id: int = Field(default=1, ge=0)
    """Number that the decoder is given first."""
    end_id: int = Field(default=2, ge=0)
    """Number that ends a sentence, of the source as well."""
    tie: Literal["none", "output", "all"] = "all"
    """What is one matrix (Press and Wolf 2017): nothing; target embedding and output; source embedding, too,
    which needs vocabularies of equal size."""

    @model_validator(mode="after")
    def _check_vocabularies(self) -> Self:
        sizes = self.source_vocabulary_size, self.target_vocabulary_size
        if self.tie == "all" and sizes[0] != sizes[1]:
            raise ValueError(
                f"tie 'all' needs vocabularies of equal size, not {sizes[0]} and {sizes[1]}; use tie 'output'"
            )
        for name in ("pad_id", "begin_id", "end_id"):
            if getattr(self, name) >= min(sizes):
                raise ValueError(f"{name} {getattr(self, name)} is no number of both vocabularies")
        return self


@runtime_checkable
class DecoderState(Protocol):
    """What a sequence model remembers between two steps: one row for each hypothesis.

    The hypotheses of a sentence are neighbours, and every sentence has as many of them. What depends on the
    sentence alone, such as its encoding, is held once for all of them.
    """

    @property
    def num_rows(self) -> int:
        """Number of hypotheses in all."""
        ...

    def expand(self, count: int) -> Self:
        """Return a state with ``count`` equal hypotheses in the place of each; they have not parted yet."""
        ...

    def select(self, rows: Int[Tensor, " rows"]) -> Self:
        """Return a state whose row ``i`` goes on from row ``rows[i]``, which is of the same sentence."""
        ...

    def keep(self, sentences: Int[Tensor, " kept"]) -> Self:
        """Return a state with all rows of some sentences, in that order; the others are finished."""
        ...


@runtime_checkable
class SequenceModel(Protocol):
    """What decoding may use of a model that writes a sequence token by token.

    How a state is made first is the model's: ``start(source, source_lengths)`` of a translation model.
    """

    def step(
        self, tokens: Int[Tensor, " rows"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows vocabulary"], DecoderState]:
        """Return the logits of what follows the newest token of each row, and the state after it."""
        ...


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
        """Return the logits of what follows each target token, of which the first is ``begin_id``."""
        ...

    def start(
        self, source: Int[Tensor, "batch source_tokens"], source_lengths: Int[Tensor, " batch"]
    ) -> DecoderState:
        """Read the sentences, and return the state before the first step, one row for each sentence."""
        ...


class ImageModel(Protocol):
    """What tasks, interpretation and serving may use of an image model.

    Images are normalised floats of any height and width of at least one patch; no model refuses a size
    that it was not made for, it pads the image or resizes its positions.
    """

    config: ImageModelConfig

    def __call__(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        """Return one logit for each class."""
        ...

    def tokens(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the tokens that the head reads, prefix tokens first, then the grid row by row."""
        ...

    def features(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> list[Float[Tensor, "batch dim rows columns"]]:
        """Return the feature map of each stage, finest first; a plain model has one stage."""
        ...


def check_images(images: Tensor, config: ImageModelConfig) -> None:
    """Refuse what is no batch of images for that model.

    Raises:
        DataError: as ``check_values``; or the images have other channels than the model reads, or fewer
            pixels than one patch.
    """
    check_values(images)
    shape = tuple(images.shape)
    if shape[1] != config.num_channels:
        raise DataError(
            f"images with {shape[1]} channels, in a batch of shape {shape}",
            expected=f"{config.num_channels} channels in the second axis",
            remedy="Convert the images, or build the model with num_channels="
            f"{shape[1]}; images whose channels stand last need permute(0, 3, 1, 2)",
        )
    if min(shape[2:]) < config.min_size:
        raise DataError(
            f"images of {shape[2]}x{shape[3]} pixels",
            expected=f"at least {config.min_size}x{config.min_size}, one patch of {type(config).family}",
            remedy="Enlarge the images, or choose a model with smaller patches",
        )


def check_values(images: Tensor) -> None:
    """Refuse what is no batch of normalised images, whatever the model.

    Values are looked at on a processor alone, and not in compiled or exported code: elsewhere the look would
    have to wait for the device, or break the graph.

    Raises:
        DataError: the images are not floats or not four-dimensional; or a value is infinite or no number.
    """
    import torch

    if images.ndim != 4:
        raise DataError(
            f"images of shape {tuple(images.shape)}",
            expected="four axes: batch, channels, height, width",
            remedy="Add a batch axis to a single image with images[None]",
        )
    if not images.is_floating_point():
        raise DataError(
            f"images of type {images.dtype}",
            expected="normalised floating-point values",
            remedy="Divide by 255 and normalise, as vitrail.Predictor does",
        )
    if images.device.type == "cpu" and not torch.compiler.is_compiling() and not images.sum().isfinite():
        raise DataError(
            "images with values that are infinite or no numbers (NaN)",
            expected="finite values, normalised",
            remedy="Find them with images.isfinite(); a division by a standard deviation of zero makes them",
        )
