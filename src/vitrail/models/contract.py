"""What every model has: settings that build it, and, for image models, three ways through it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from pydantic import Field

from vitrail.config import Config
from vitrail.errors import DataError

if TYPE_CHECKING:
    from jaxtyping import Float
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

    image_size: tuple[int, int] = (224, 224)
    """Height and width in pixels that the model is made for; it takes others, too."""
    num_channels: int = Field(default=3, ge=1)
    """Channels of the image."""
    num_classes: int = Field(default=1000, ge=1)
    """Number of logits."""

    @property
    def min_size(self) -> int:
        """The smallest height and width of an image in pixels: one patch of the first layer."""
        raise NotImplementedError


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
    """Refuse what is no batch of images for that model; looks at type and shape, not at values.

    Raises:
        DataError: the images are not floats, not four-dimensional, have other channels than the model
            reads or fewer pixels than one patch.
    """
    shape = tuple(images.shape)
    if images.ndim != 4:
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
