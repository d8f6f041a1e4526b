"""What every model of images and texts has: settings, and the way of both into one space of embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

from pydantic import Field, model_validator

from vitrail.core.config import ImageSize
from vitrail.core.errors import DataError
from vitrail.models.contract import ModelConfig

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class ImageTextModelConfig(ModelConfig):
    """The settings that all models of images and texts share; texts come as numbers of subwords."""

    position_policy: ClassVar[str]
    """How the family tells the model where a token stands, and what happens to it at another size."""
    size_policy: ClassVar[str]
    """What the family does with an image whose height or width does not divide evenly."""

    image_size: ImageSize = (224, 224)
    """Height and width in pixels that the model is made for; it takes others, too."""
    embedding_dim: int = Field(default=512, ge=1)
    """Width of the space that images and texts are compared in."""
    vocabulary_size: int = Field(default=49_408, ge=4)
    """Number of subwords."""
    max_length: int = Field(default=77, ge=3)
    """Subwords of the longest text, with the one that begins it and the one that ends it."""
    pad_id: int = Field(default=0, ge=0)
    """Number that fills a row behind its text; it changes nothing."""
    begin_id: int = Field(default=49_406, ge=0)
    """Number that begins a text."""
    end_id: int = Field(default=49_407, ge=0)
    """Number that ends a text, whose token becomes the embedding."""

    @model_validator(mode="after")
    def _check_vocabulary(self) -> Self:
        for name in ("pad_id", "begin_id", "end_id"):
            if getattr(self, name) >= self.vocabulary_size:
                raise ValueError(
                    f"{name} {getattr(self, name)} is no number of the {self.vocabulary_size} subwords"
                )
        return self


class ImageTextOutput(NamedTuple):
    """Images and texts in one space."""

    images: Float[Tensor, "images dim"]
    """Embeddings of length one, float32."""
    texts: Float[Tensor, "texts dim"]
    """Embeddings of length one, float32."""
    scale: Float[Tensor, ""]
    """What cosines are multiplied by to become logits."""


@runtime_checkable
class ImageTextModel(Protocol):
    """What tasks, classification and interpretation may use of a model of images and texts."""

    config: ImageTextModelConfig

    def __call__(
        self,
        images: Float[Tensor, "images channels height width"],
        tokens: Int[Tensor, "texts tokens"],
        lengths: Int[Tensor, " texts"],
    ) -> ImageTextOutput:
        """Return the embeddings of images and of texts, which need not be as many.

        Args:
            images: normalised.
            tokens: ``begin_id``, subwords and ``end_id`` of each text, then padding, which changes nothing.
            lengths: how many of them are not padding.
        """
        ...

    def embed_images(
        self, images: Float[Tensor, "images channels height width"]
    ) -> Float[Tensor, "images dim"]:
        """Return the embeddings of images alone, of length one."""
        ...

    def embed_texts(
        self, tokens: Int[Tensor, "texts tokens"], lengths: Int[Tensor, " texts"]
    ) -> Float[Tensor, "texts dim"]:
        """Return the embeddings of texts alone, of length one."""
        ...

    def logit_factor(self) -> Float[Tensor, ""]:
        """Return what cosines are multiplied by to become logits."""
        ...


def check_texts(tokens: Tensor, lengths: Tensor) -> None:
    """Refuse what are no rows of subwords with their lengths.

    Lengths are compared on a processor alone, and not in compiled or exported code.

    Raises:
        DataError: there is not one length for each row, or one is below one or beyond the row.
    """
    import torch

    if tokens.ndim != 2 or tuple(lengths.shape) != (tokens.shape[0],):
        raise DataError(
            f"tokens of shape {tuple(tokens.shape)} with lengths of shape {tuple(lengths.shape)}",
            expected="one row of tokens and one length for each text",
            remedy="Make both with vitrail.data.text.rows.join_rows",
        )
    if lengths.device.type != "cpu" or torch.compiler.is_compiling() or not len(lengths):
        return
    if int(lengths.min()) < 1 or int(lengths.max()) > tokens.shape[1]:
        raise DataError(
            f"texts of {int(lengths.min())} to {int(lengths.max())} tokens in rows of {tokens.shape[1]}",
            expected="lengths between one and the rows' own",
            remedy="Count the tokens of each text with the one that begins and the one that ends it",
        )
