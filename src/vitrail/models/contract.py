"""What every model has: settings that build it, and, for image models, three ways through it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from vitrail.config import Config

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


class ImageModel(Protocol):
    """What tasks, interpretation and serving may use of an image model.

    Images are normalised floats of any height and width; no model refuses a size that it was not made
    for, it pads the image or resizes its positions.
    """

    config: ModelConfig

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
