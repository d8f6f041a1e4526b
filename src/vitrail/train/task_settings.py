"""What a model is trained to do."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.core.config import Config


class TaskSettings(Config):
    """What the model is trained to do."""

    name: str
    """The task, a file of ``vitrail/tasks``."""


class ClassificationSettings(TaskSettings):
    """Settings of image classification."""

    name: Literal["classification"] = "classification"
    """The task."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Probability mass spread evenly over all classes (Szegedy et al. 2016)."""


class TranslationSettings(TaskSettings):
    """Settings of translation."""

    name: Literal["translation"] = "translation"
    """The task."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Probability mass spread evenly over all subwords (Szegedy et al. 2016)."""
    beam_size: int = Field(5, ge=1)
    """Hypotheses kept while decoding the test split; the validation curve is decoded greedily."""
    length_penalty: float = 1.0
    """Exponent of the length by which a hypothesis' log-probability is divided; 0 prefers short ones."""


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


class CaptionSettings(TaskSettings):
    """Settings of captioning."""

    name: Literal["captioning"] = "captioning"
    """The task."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Probability mass spread evenly over all tokens (Szegedy et al. 2016)."""
    attention_weight: float = Field(1.0, ge=0)
    """Of the regularisation that each cell be looked at once in all (Xu et al. 2015, equation 14); only for
    models whose attention is one head's."""
    beam_size: int = Field(3, ge=1)
    """Hypotheses kept while captioning the test split; the validation curve is captioned greedily."""
    length_penalty: float = 0.7
    """Exponent of the length by which a hypothesis' log-probability is divided; 0 prefers short ones."""
    max_length: int = Field(30, ge=1)
    """Most tokens of a caption that is written, its end counted."""


class ContrastiveSettings(TaskSettings):
    """Settings of learning which images and texts belong together; the loss has none."""

    name: Literal["contrastive"] = "contrastive"
    """The task."""
