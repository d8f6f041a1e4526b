"""What every model that captions images has: settings, an encoder's cells, and a decoder that reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from vitrail.core.config import ImageSize
from vitrail.models.contract import DecoderState, ImageModelConfig, ModelConfig, SequenceModel

if TYPE_CHECKING:
    from vitrail.models.caption_encoder import ImageCells


class CaptionModelConfig(ModelConfig):
    """The settings that all captioners share; captions come as numbers of tokens."""

    position_policy: ClassVar[str]
    """How the family tells the model where a token and a cell stand."""
    size_policy: ClassVar[str] = "the encoder's"
    """What becomes of an image that does not divide evenly."""

    vocabulary_size: int = Field(default=10_000, ge=5)
    """Number of tokens, the width of the logits."""
    pad_id: int = Field(default=0, ge=0)
    """Number that fills a row behind its caption."""
    begin_id: int = Field(default=1, ge=0)
    """Number that the decoder is given first."""
    end_id: int = Field(default=2, ge=0)
    """Number that ends a caption."""
    image_size: ImageSize = (224, 224)
    """Height and width in pixels that the encoder is made for."""
    encoder: str = "resnet18"
    """Name of the image model whose cells are read."""
    encoder_changes: dict[str, Any] = Field(default_factory=dict)
    """Fields of its settings that differ from the named ones."""
    encoder_stage: int = Field(default=-1, le=-1)
    """Which stage of an encoder of several stages is read, counted from the last; those after it are left
    out. The last but one has four times as many cells."""
    encoder_frozen: bool = False
    """Whether the encoder keeps the weights that it starts with, and runs as in evaluation."""
    pool: int = Field(default=1, ge=1)
    """Rows and columns of the encoder's grid that are averaged to one cell."""

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        for name in ("pad_id", "begin_id", "end_id"):
            if getattr(self, name) >= self.vocabulary_size:
                raise ValueError(f"{name} {getattr(self, name)} is no number of the vocabulary")
        reserved = {"image_size", "name"} & set(self.encoder_changes)
        if reserved:
            raise ValueError(f"encoder_changes sets {', '.join(sorted(reserved))}; the captioner's own count")
        return self

    @property
    def encoder_config(self) -> ImageModelConfig:
        """Settings of the encoder.

        Raises:
            ConfigError: there is no such model, or its settings have no such fields.
        """
        from vitrail.models import MODELS  # which imports this folder

        config = MODELS[self.encoder]
        if not isinstance(config, ImageModelConfig):
            from vitrail.core.errors import ConfigError

            raise ConfigError(
                f"model.encoder is {self.encoder}",
                expected="a model of images, such as resnet18 or vit_s16",
                remedy="Choose one; vitrail models lists them",
            )
        return config.with_changes({**self.encoder_changes, "image_size": self.image_size})


class CaptionOutput(NamedTuple):
    """What a captioner makes of images and captions."""

    logits: Float[Tensor, "batch captions tokens vocabulary"]
    """Of what follows each token."""
    attention: Float[Tensor, "batch captions tokens cells"] | None
    """Share of each cell in what is read at each step, for a loss to regularise; None where a decoder has
    many heads, which no loss here speaks of."""


@runtime_checkable
class CaptionModel(SequenceModel, Protocol):
    """What tasks, decoding and interpretation may use of a captioner.

    Its input are normalised images (batch channels height width), or the cells that ``encode`` made of them
    (batch cells dim), such as those of a frozen encoder that were kept.
    """

    config: CaptionModelConfig

    def __call__(
        self,
        images: Float[Tensor, batch * content],
        captions: Int[Tensor, "batch captions tokens"],
    ) -> CaptionOutput:
        """Return logits; the first token of each caption is ``begin_id``."""
        ...

    def encode(self, images: Float[Tensor, "batch channels height width"]) -> ImageCells:
        """Return the encoder's cells; without gradients where it is frozen."""
        ...

    def start(self, images: Float[Tensor, batch * content]) -> DecoderState:
        """Look at the images, and return the state before the first step, one row for each image."""
        ...
