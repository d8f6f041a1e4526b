"""Settings of image classification."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from vitrail.core.config import ImageSize
from vitrail.data.preprocessing import Resize
from vitrail.data.settings import AugmentSettings, DataSettings
from vitrail.models.contract import ImageModelConfig
from vitrail.train.settings import Experiment, ModelSettings, TaskSettings


class ImageDataSettings(DataSettings):
    """Which images are read, and their input size."""

    image_column: str = ""
    """Column of a table that names the images; found by its name if empty."""
    label_column: str = ""
    """Likewise of the classes."""
    image_size: ImageSize
    """Height and width in pixels of the model input; 64 and 64x48 are accepted, too."""
    resize: Resize = "crop"
    """Evaluation preprocessing for other aspect ratios: squash, resize the shorter side and crop the centre,
    or letterbox, the whole image between bars of the mean colour.
    """


class ClassificationSettings(TaskSettings):
    """Settings of image classification."""

    name: Literal["classification"] = "classification"
    """The task."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Label smoothing: probability mass spread evenly over all classes (Szegedy et al. 2016)."""
    teacher: str | None = None
    """Noisy Student (Xie et al. 2020): a classifier, as for ``weights``, that labels ``unlabelled``."""
    unlabelled: str | None = None
    """Images without labels: a folder or a pattern."""
    least_confidence: float = Field(0.3, ge=0, le=1)  # Xie et al. 2020, section 3.1
    """Images of which the teacher is less sure are left out."""

    @model_validator(mode="after")
    def _check_teacher(self) -> Self:
        if (self.teacher is None) != (self.unlabelled is None):
            raise ValueError("teacher and unlabelled belong together")
        return self


class ClassificationExperiment(Experiment):
    """A run that trains an image classifier."""

    data: ImageDataSettings
    """The data set."""
    model: ModelSettings[ImageModelConfig]
    """The model."""
    task: ClassificationSettings = ClassificationSettings()
    """The task."""
    augment: AugmentSettings = AugmentSettings()
    """Augmentation of training images."""
