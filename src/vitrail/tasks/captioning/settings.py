"""Settings of image captioning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.core.config import ImageSize
from vitrail.data.settings import AugmentSettings, DataSettings
from vitrail.train.settings import Experiment, TaskSettings


class CaptionDataSettings(DataSettings):
    """What images with captions are read, and how captions are cut into tokens."""

    image_size: ImageSize
    """Height and width in pixels that every image is brought to; 224 and 224x192 can be given as well."""
    resize: Literal["squash", "crop"] = "squash"
    """How an image of another shape is brought to ``image_size``: squashed to it, so that nothing that a
    caption speaks of is cut off, or scaled so that its shorter side fits and cropped at the centre."""
    tokens: Literal["words", "bpe", "unigram"] = "words"
    """What a caption is cut into: words between spaces, byte pairs (Sennrich et al. 2016) or unigrams (Kudo
    2018)."""
    plain_words: bool = True
    """Whether captions become lower-case words without punctuation before anything else, as scores count
    them; otherwise they are learned as they are."""
    vocabulary_size: int = Field(10_000, ge=16)
    """Number of tokens, special ones included; fewer where the captions have not as many."""
    min_count: int = Field(3, ge=1)
    """How often a word must occur in the training captions to be in the vocabulary; of whole words only."""
    max_length: int = Field(40, ge=2)
    """Tokens of a training caption with its end; longer ones are left out."""
    captions_per_image: int = Field(0, ge=0)
    """Captions of an image that one training step reads, drawn anew each time; 0 reads all of them, so that
    the encoder runs once for all."""


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


class CaptionExperiment(Experiment):
    """A run that learns to caption images; ``weights`` may also be an image model's, for the encoder."""

    data: CaptionDataSettings
    """What is read."""
    task: CaptionSettings = CaptionSettings()
    """What is learned."""
    augment: AugmentSettings = AugmentSettings()
    """How training images are varied; those whose features are kept are not. Mixing is not for captions."""
    keep_features: bool = True
    """Whether what a frozen encoder makes of training and validation images is computed once and kept in a
    file (in ``VITRAIL_CACHE``, or the user's folder of caches); otherwise it runs at every step."""
