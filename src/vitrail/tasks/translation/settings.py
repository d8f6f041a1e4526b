"""Settings of translation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.data.settings import DataSettings
from vitrail.train.settings import Experiment, TaskSettings


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


class TranslationExperiment(Experiment):
    """A run that learns to translate."""

    data: PairDataSettings
    """What is read."""
    task: TranslationSettings = TranslationSettings()
    """What is learned."""
