"""Settings of labelling texts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.data.settings import DataSettings
from vitrail.models.contract import LabellingModelConfig
from vitrail.train.settings import Experiment, ModelSettings, TaskSettings


class TextDataSettings(DataSettings):
    """Which texts are read, and how they are cut into subwords."""

    label_column: str = ""
    """Tables only: the column of labels; found by its name if empty."""
    tag_column: int | None = None
    """CoNLL files only: the column of tags, counted from 0, or from the end if negative; null takes the last
    one, of CoNLL-U the universal part of speech."""
    lower_case: bool = True
    """Whether texts are lower-cased; published weights have their own rule."""
    subwords: Literal["bpe", "unigram"] = "bpe"
    """Byte-pair encoding (Sennrich et al. 2016) or a unigram language model (Kudo 2018)."""
    vocabulary_size: int = Field(8000, ge=16)
    """Maximum number of subwords, including special ones; published weights have their own."""
    max_length: int = Field(256, ge=3)
    """Maximum subwords of a text, begin and end included; what is beyond is not read."""


class LabellingSettings(TaskSettings):
    """Settings of labelling texts."""

    name: Literal["labelling"] = "labelling"
    """The task."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Label smoothing: probability mass spread evenly over all labels (Szegedy et al. 2016)."""


class LabellingExperiment(Experiment):
    """A run that trains a model to label texts."""

    data: TextDataSettings
    """The data set."""
    model: ModelSettings[LabellingModelConfig]
    """The model."""
    task: LabellingSettings = LabellingSettings()
    """The task."""
