"""Settings of contrastive training on images and texts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.core.config import ImageSize
from vitrail.data.preprocessing import Resize
from vitrail.data.settings import AugmentSettings, DataSettings
from vitrail.models.contract import ImageTextModelConfig
from vitrail.train.settings import Experiment, ModelSettings, TaskSettings


class ImageTextDataSettings(DataSettings):
    """Which captioned images are read for contrastive training, and how captions are tokenised."""

    image_size: ImageSize
    """Height and width in pixels of the model input; 224 and 224x192 are accepted, too."""
    resize: Resize = "crop"
    """Preprocessing for other aspect ratios: squash, letterbox, or resize the shorter side and crop the
    centre, like published CLIPs.
    """
    vocabulary_size: int = Field(4000, ge=16)
    """Maximum number of subwords, including special ones; pretrained weights bring their own."""
    lower_case: bool = True
    """Whether captions are lower-cased."""


class ContrastiveSettings(TaskSettings):
    """Settings of contrastive training; the loss has none."""

    name: Literal["contrastive"] = "contrastive"
    """The task."""


class ContrastiveExperiment(Experiment):
    """A contrastive (CLIP) training run."""

    data: ImageTextDataSettings
    """The data set."""
    model: ModelSettings[ImageTextModelConfig]
    """The model."""
    task: ContrastiveSettings = ContrastiveSettings()
    """The task."""
    augment: AugmentSettings = AugmentSettings()
    """Augmentation of training images, without mixing."""
