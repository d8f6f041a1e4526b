"""What is read, and how it is divided."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.core.config import Config, ImageSize


class DataSettings(Config):
    """What is read and how it is divided, whatever kind of data it is."""

    source: str
    """A folder, a file, a Hugging Face data set name or a built-in name."""
    test_fraction: float = Field(0.2, gt=0, lt=1)
    """Share of the samples held out for the final test where the source brings no test split."""
    validation_fraction: float = Field(0.05, ge=0, lt=1)
    """Share of the training samples held out to draw the validation curve; choices are made on them."""
    max_validation: int = Field(1000, ge=0)
    """Upper bound of that share, in samples."""
    split_seed: int = 0
    """Seed of the splits; the training seed does not change them."""


class ImageDataSettings(DataSettings):
    """What images are read and what size they are brought to."""

    image_size: ImageSize
    """Height and width in pixels that every image is brought to; 64 and 64x48 can be given as well."""
    resize: Literal["squash", "crop"] = "crop"
    """How an image of another shape is brought to ``image_size`` for evaluation: squashed to it, or scaled
    so that its shorter side fits and cropped at the centre."""


class PairDataSettings(DataSettings):
    """What pairs of sentences are read and how they are cut into subwords."""

    languages: tuple[str, str] | None = None
    """Codes of the source and the target language, which say which files, columns or keys are read; null
    where the data has two of them, in the order in which they lie there."""
    tokenised: bool = False
    """Whether the text is cut into words by spaces already; BLEU then takes the words as they are."""
    lower_case: bool = False
    """Whether upper-case letters of both sides are made lower-case before anything else."""
    subwords: Literal["bpe", "unigram"] = "bpe"
    """How the vocabulary is learned: byte-pair encoding (Sennrich et al. 2016) or a unigram language model
    (Kudo 2018)."""
    vocabulary_size: int = Field(8000, ge=16)
    """Number of subwords, special ones included; fewer where the text has not as many."""
    joint_vocabulary: bool = True
    """Whether both languages share one vocabulary."""
    subword_dropout: float = Field(0.0, ge=0, lt=1)
    """Probability that a merge is skipped in training (BPE-dropout, Provilkov et al. 2020); with unigrams,
    above zero, segmentations are drawn with this smoothing exponent (Kudo 2018)."""
    max_length: int = Field(128, ge=2)
    """Subwords of the longer side of a training pair; longer pairs are left out."""


class BoxDataSettings(DataSettings):
    """What images with boxes are read and what size they are brought to."""

    image_size: ImageSize
    """Height and width in pixels that every image is brought to; 240x320 can be given as well."""
    resize: Literal["fit", "squash", "shortest"] = "fit"
    """How: scaled to fit into ``image_size`` with its aspect kept, what is left being padding; squashed to
    it; or scaled so that its shorter side is that of ``image_size`` unless the longer one would exceed the
    other (Carion et al. 2020, section 4)."""


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


class ImageTextDataSettings(DataSettings):
    """What images with captions are read to learn how both belong together, and how captions are cut."""

    image_size: ImageSize
    """Height and width in pixels that every image is brought to; 224 and 224x192 can be given as well."""
    resize: Literal["squash", "crop"] = "crop"
    """How an image of another shape is brought to ``image_size``: squashed to it, or scaled so that its
    shorter side fits and cropped at the centre, as published CLIPs do."""
    vocabulary_size: int = Field(4000, ge=16)
    """Number of subwords, special ones included; fewer where the captions have not as many. Weights bring
    their own."""
    lower_case: bool = True
    """Whether letters of captions are made lower-case."""
