"""Settings of object detection."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.core.config import Config, ImageSize
from vitrail.data.settings import DataSettings
from vitrail.models.contract import DetectionModelConfig
from vitrail.train.settings import Experiment, ModelSettings, TaskSettings


class BoxDataSettings(DataSettings):
    """The source of images with boxes, and their input size."""

    image_size: ImageSize
    """Height and width in pixels that every image is brought to; 240x320 can be given as well."""
    resize: Literal["fit", "squash", "shortest"] = "fit"
    """How: scaled to fit into ``image_size`` with its aspect kept, what is left being padding; squashed to
    it; or scaled so that its shorter side is that of ``image_size`` unless the longer one would exceed the
    other (Carion et al. 2020, section 4)."""


class DetectionSettings(TaskSettings):
    """Settings of detection."""

    name: Literal["detection"] = "detection"
    """The task."""
    class_weight: float = Field(1.0, ge=0)
    """Of the class term, in the loss and in the cost of matching."""
    l1_weight: float = Field(5.0, ge=0)
    """Of the L1 distance of boxes as shares of the image (Carion et al. 2020, section A.2)."""
    giou_weight: float = Field(2.0, ge=0)
    """Of the generalised IoU of boxes (Rezatofighi et al. 2019)."""
    no_object_weight: float = Field(0.1, ge=0)
    """Of queries that match no box, in the class term of a softmax (Carion et al. 2020, section 3.1)."""


class BoxAugmentSettings(Config):
    """Augmentation of training images and their boxes; everything at zero leaves them unchanged."""

    flip: bool = False
    """Flip left and right with probability one half."""
    flip_vertical: bool = False
    """Flip top and bottom with probability one half, where neither is up."""
    scale: float = Field(0.0, ge=0, lt=1)
    """Random scaling by a factor between one minus and one plus this."""
    shift: float = Field(0.0, ge=0, lt=1)
    """Random translation by up to this share of the image's height and width."""
    rotation: float = Field(0.0, ge=0, le=180)
    """Random rotation by up to this many degrees; a box becomes the one around its corners."""
    crop: float = Field(0.0, ge=0, le=1)
    """Probability of a random crop before resizing; boxes are clipped, those with less than a quarter of
    their area left are dropped."""
    colour: float = Field(0.0, ge=0, le=1)
    """Strength of random brightness, contrast and saturation changes."""
    mosaic: float = Field(0.0, ge=0, le=1)
    """Probability that four images are joined to one (Bochkovskiy et al. 2020)."""


class DetectionExperiment(Experiment):
    """A training run of a detector."""

    data: BoxDataSettings
    """The data set."""
    model: ModelSettings[DetectionModelConfig]
    """The model."""
    task: DetectionSettings = DetectionSettings()
    """The task and its losses."""
    augment: BoxAugmentSettings = BoxAugmentSettings()
    """Augmentation of training images."""
