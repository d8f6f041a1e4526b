"""Settings of image captioning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.core.config import ImageSize
from vitrail.data.preprocessing import Resize
from vitrail.data.settings import AugmentSettings, DataSettings
from vitrail.models.contract import CaptionModelConfig
from vitrail.models.decoding import PenaltyForm
from vitrail.train.settings import Experiment, ModelSettings, TaskSettings


class CaptionDataSettings(DataSettings):
    """Which captioned images are read, and how captions are tokenised."""

    image_size: ImageSize
    """Height and width in pixels of the model input; 224 and 224x192 are accepted, too."""
    resize: Resize = "squash"
    """Preprocessing for other aspect ratios: squash or letterbox, so that nothing in a caption is cut off, or
    resize the shorter side and crop the centre.
    """
    tokens: Literal["words", "bpe", "unigram"] = "words"
    """Tokens of a caption: words, byte pairs (Sennrich et al. 2016) or unigrams (Kudo 2018)."""
    plain_words: bool = True
    """Whether to lower-case captions and remove punctuation first, as scores do."""
    vocabulary_size: int = Field(10_000, ge=16)
    """Maximum number of tokens, including special ones."""
    min_count: int = Field(3, ge=1)
    """Minimum occurrences of a word in the training captions; whole words only."""
    max_length: int = Field(40, ge=2)
    """Maximum tokens of a training caption including its end; longer ones are left out."""
    captions_per_image: int = Field(0, ge=0)
    """Captions per image and training step, drawn anew each time; 0 uses all, so that the encoder runs once
    for them.
    """


class CaptionSettings(TaskSettings):
    """Settings of captioning."""

    name: Literal["captioning"] = "captioning"
    """The task."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Label smoothing: probability mass spread evenly over all tokens (Szegedy et al. 2016)."""
    attention_weight: float = Field(1.0, ge=0)
    """Weight of doubly stochastic attention (Xu et al. 2015, equation 14); single-head attention only."""
    cider_reward: float = Field(0.0, ge=0)
    """Weight of CIDEr-D in the reward of self-critical training (Rennie et al. 2017); with no reward, the
    loss is the cross entropy.
    """
    bleu_reward: float = Field(0.0, ge=0)
    """Weight of the caption's own BLEU-4 in that reward."""
    beam_size: int = Field(3, ge=1)
    """Beam size on the test split; validations decode greedily."""
    length_penalty: float = 0.7
    """Exponent of the length penalty, as in translation; 0 prefers short captions."""
    penalty_form: PenaltyForm = "power"
    """Form of the length penalty, as in translation."""
    max_length: int = Field(30, ge=1)
    """Maximum tokens of a generated caption, including its end."""


class CaptionExperiment(Experiment):
    """A run that trains a captioner; ``weights`` may also be an image model's, for the encoder."""

    data: CaptionDataSettings
    """The data set."""
    model: ModelSettings[CaptionModelConfig]
    """The model."""
    task: CaptionSettings = CaptionSettings()
    """The task."""
    augment: AugmentSettings = AugmentSettings()
    """Augmentation of training images, unless their features are cached; mixing is not supported."""
    keep_features: bool = True
    """Whether to cache the features of a frozen encoder on disk (in ``VITRAIL_CACHE``, or the user's cache
    folder); otherwise it runs at every step.
    """
