"""What every detection model has: settings, and the way from images to boxes.

Boxes are centre, width and height (cxcywh) as shares, 0 to 1, of the image without its padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from pydantic import Field

from vitrail.core.config import ImageSize
from vitrail.core.errors import DataError
from vitrail.models.contract import ModelConfig, check_values

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class DetectionModelConfig(ModelConfig):
    """The settings that all detection models share."""

    position_policy: ClassVar[str]
    """How the family tells the model where a token stands, and what happens to it at another size."""
    size_policy: ClassVar[str]
    """What the family does with an image whose height or width does not divide evenly."""
    scoring: ClassVar[Literal["softmax", "sigmoid"]]
    """How logits become scores: one distribution over the classes and a last one, no object; or every class
    by itself."""

    image_size: ImageSize = (800, 1333)
    """Height and width in pixels that the model is made for; it takes others, too."""
    num_classes: int = Field(default=91, ge=1)
    """Number of classes, without the one that stands for no object."""
    num_queries: int = Field(default=100, ge=1)
    """Number of boxes that the model answers with, for every image."""


class BoxTargets(NamedTuple):
    """The boxes of a batch, each image's row filled up to the longest."""

    labels: Int[Tensor, "batch boxes"]
    """Class of each box; any class where there is none."""
    boxes: Float[Tensor, "batch boxes 4"]
    """The boxes; any numbers where there is none."""
    counts: Int[Tensor, " batch"]
    """Boxes of each image, which come first in its row; may be 0."""


class AuxiliaryOutput(NamedTuple):
    """Further predictions that are trained beside the final ones and have no part in the answer."""

    logits: Float[Tensor, "batch queries classes"]
    """As those of the answer."""
    boxes: Float[Tensor, "batch queries 4"]
    """As those of the answer."""
    num_matches: int = 1
    """How many predictions each box is matched with: one, or several (one-to-many)."""
    assigned: Int[Tensor, "batch queries"] | None = None
    """Which box of the image each prediction is to be, where that is known beforehand (denoising queries):
    its place in the image's row, -1 for none, -2 for a prediction that only fills the row and does not count.
    None where it is found by matching."""
    weight: float = 1.0
    """Of its loss, beside that of the answer."""


class DetectionOutput(NamedTuple):
    """What a detection model answers."""

    logits: Float[Tensor, "batch queries classes"]
    """Of each query; with a softmax there is one more class, the last, for no object."""
    boxes: Float[Tensor, "batch queries 4"]
    """Of each query."""
    auxiliary: tuple[AuxiliaryOutput, ...] = ()
    """Of the layers before the last, and others; empty in evaluation mode."""


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
        """Return the boxes of each image.

        Args:
            images: each at the top left of its place; what is right of it and below is padding.
            sizes: height and width of each in pixels, without the padding, which changes nothing; None where
                there is none.
            targets: in training, for models that learn from boxes that they are given (denoising); others
                leave them alone. They change nothing in evaluation mode.
        """
        ...


def check_inputs(images: Tensor, sizes: Tensor | None) -> None:
    """Refuse what are no images for a detector, or sizes that are not theirs.

    Sizes are compared on a processor alone, and not in compiled or exported code.

    Raises:
        DataError: the images are not three channels of finite floats on four axes; or sizes are not whole
            numbers, a height and a width for each image, of at least one pixel and at most as many as there
            are.
    """
    import torch

    check_values(images)
    shape = tuple(images.shape)
    if shape[1] != 3:
        raise DataError(
            f"images with {shape[1]} channels, in a batch of shape {shape}",
            expected="3 channels, red, green and blue, in the second axis",
            remedy="Convert the images; those whose channels stand last need permute(0, 3, 1, 2)",
        )
    if sizes is None:
        return
    if tuple(sizes.shape) != (shape[0], 2) or sizes.is_floating_point():
        raise DataError(
            f"sizes of type {sizes.dtype} and shape {tuple(sizes.shape)} for {shape[0]} images",
            expected="whole numbers of pixels, a height and a width for each image",
            remedy="Give the sizes as a tensor of integers of shape (batch, 2), or none without padding",
        )
    if sizes.device.type == "cpu" and not torch.compiler.is_compiling():
        limits = torch.tensor(shape[2:])
        if (sizes < 1).any() or (sizes > limits).any():
            raise DataError(
                f"sizes {sizes.tolist()} of images that lie in {shape[2]}x{shape[3]} pixels",
                expected="heights and widths of at least one pixel, and no more than there are",
                remedy="Give each image's own height and width, in this order, without its padding",
            )


def is_padded(images: Tensor, sizes: Tensor | None) -> bool:
    """Tell whether any image may have padding beside it; where a look would be costly, the answer is yes."""
    import torch

    if sizes is None:
        return False
    if sizes.device.type != "cpu" or torch.compiler.is_compiling():
        return True
    return bool((sizes < torch.tensor(images.shape[2:])).any())
