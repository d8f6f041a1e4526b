"""Settings of translation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.data.settings import DataSettings
from vitrail.models.contract import TranslationModelConfig
from vitrail.models.decoding import PenaltyForm
from vitrail.tasks.translation.search import Search
from vitrail.train.settings import Experiment, ModelSettings, TaskSettings


class PairDataSettings(DataSettings):
    """Which sentence pairs are read, and how they are tokenised."""

    languages: tuple[str, str] | None = None
    """Source and target language codes, which select files, columns or keys; null if the data has just two,
    in their order.
    """
    tokenised: bool = False
    """Whether the text is tokenised already; BLEU then uses the words as they are."""
    lower_case: bool = False
    """Whether both sides are lower-cased."""
    subwords: Literal["bpe", "unigram"] = "bpe"
    """Byte-pair encoding (Sennrich et al. 2016) or a unigram language model (Kudo 2018)."""
    vocabulary_size: int = Field(8000, ge=16)
    """Maximum number of subwords, including special ones."""
    joint_vocabulary: bool = True
    """Whether both languages share one vocabulary."""
    subword_dropout: float = Field(0.0, ge=0, lt=1)
    """BPE-dropout: probability of skipping a merge in training (Provilkov et al. 2020); for unigrams, the
    smoothing exponent of sampled segmentations (Kudo 2018), if above zero.
    """
    max_length: int = Field(128, ge=2)
    """Maximum subwords of the longer side of a training pair; longer pairs are left out."""


class TranslationSettings(TaskSettings):
    """Settings of translation."""

    name: Literal["translation"] = "translation"
    """The task."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Label smoothing: probability mass spread evenly over all subwords (Szegedy et al. 2016)."""
    beam_size: int = Field(5, ge=1)
    """Beam size on the test split; validations decode greedily."""
    length_penalty: float = 1.0
    """Exponent a of the length penalty, which a hypothesis' log-probability is divided by; 0 prefers short
    ones."""
    penalty_form: PenaltyForm = "power"
    """Length penalty: ``power`` is length^a, ``gnmt`` is ((5 + length) / 6)^a (Wu et al. 2016, equation
    14)."""

    @property
    def search(self) -> Search:
        """How a run is scored, and the default of its translator."""
        return Search(self.beam_size, self.length_penalty, penalty_form=self.penalty_form)


class TranslationExperiment(Experiment):
    """A run that trains a translator."""

    data: PairDataSettings
    """The data set."""
    model: ModelSettings[TranslationModelConfig]
    """The model."""
    task: TranslationSettings = TranslationSettings()
    """The task."""
