"""The resolved settings of one training run: what is stored, repeated, resumed and overridden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from vitrail.config import Config, ImageSize
from vitrail.errors import ConfigError


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


class AugmentSettings(Config):
    """How training images are varied; everything at zero leaves them as they are."""

    min_crop_area: float = Field(1.0, gt=0, le=1)
    """Smallest share of the image's area that a random resized crop keeps; 1 crops nothing."""
    shift: int = Field(0, ge=0)
    """Random translation by up to this many pixels, the border padded with zeros after normalisation."""
    flip: bool = False
    """Mirror left and right with probability one half."""
    rotation: float = Field(0.0, ge=0, le=180)
    """Random rotation by up to this many degrees."""
    colour: float = Field(0.0, ge=0, le=1)
    """Strength of random brightness, contrast and saturation changes."""
    erase: float = Field(0.0, ge=0, le=1)
    """Probability of random erasing (Zhong et al. 2020)."""
    mixup: float = Field(0.0, ge=0)
    """Alpha of the beta distribution of mixup (Zhang et al. 2018); 0 switches it off."""
    cutmix: float = Field(0.0, ge=0)
    """Alpha of the beta distribution of CutMix (Yun et al. 2019); 0 switches it off."""
    mix_probability: float = Field(1.0, ge=0, le=1)
    """Probability that a batch is mixed at all, by mixup or CutMix with equal chance if both are on."""


class TaskSettings(Config):
    """What the model is trained to do."""

    name: str
    """The task, a file of ``vitrail/tasks``."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Probability mass spread evenly over all classes or subwords (Szegedy et al. 2016)."""


class ClassificationSettings(TaskSettings):
    """Settings of image classification."""

    name: Literal["classification"] = "classification"
    """The task."""


class TranslationSettings(TaskSettings):
    """Settings of translation."""

    name: Literal["translation"] = "translation"
    """The task."""
    beam_size: int = Field(5, ge=1)
    """Hypotheses kept while decoding the test split; the validation curve is decoded greedily."""
    length_penalty: float = 1.0
    """Exponent of the length by which a hypothesis' log-probability is divided; 0 prefers short ones."""


class OptimSettings(Config):
    """How weights follow gradients."""

    name: Literal["adamw", "muon"] = "adamw"
    """AdamW (Loshchilov and Hutter 2019), or Muon (Jordan et al. 2024) for hidden matrices and convolution
    kernels with AdamW for the rest."""
    learning_rate: float = Field(1e-3, gt=0)
    """Peak rate of AdamW."""
    matrix_learning_rate: float = Field(0.02, gt=0)
    """Peak rate of Muon for hidden matrices; unused by AdamW."""
    weight_decay: float = Field(0.05, ge=0)
    """Decoupled weight decay of matrices; vectors (norms, biases, positions) have none."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of Adam's two moments."""
    clip_norm: float = Field(1.0, ge=0)
    """Gradients are scaled down to this global norm; 0 switches clipping off."""
    warmup_fraction: float = Field(0.1, ge=0, lt=1)
    """Share of all steps during which the rate rises linearly."""
    schedule: Literal["cosine", "inverse_sqrt"] = "cosine"
    """How the rate falls afterwards: along half a cosine (Loshchilov and Hutter 2017), or with the inverse
    square root of the steps (Vaswani et al. 2017, eq. 3)."""
    final_rate: float = Field(0.0, ge=0, le=1)
    """Rate at the end of the cosine, as a share of the peak."""
    average: Literal["ema", "tail"] = "ema"
    """Which weights are validated and kept: an exponential moving average, or the uniform average over the
    tail of the training (Polyak and Juditsky 1992; Vaswani et al. 2017, section 6.1, of checkpoints)."""
    ema_fraction: float = Field(0.02, ge=0, lt=1)
    """Averaging horizon of the EMA weights as a share of all steps; 0 switches the EMA off."""
    tail_fraction: float = Field(0.25, gt=0, le=1)
    """Share of the training, at its end, over which the tail average is taken."""

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.schedule == "inverse_sqrt" and not self.warmup_fraction:
            raise ValueError(
                "schedule inverse_sqrt falls from the end of the warm-up, but warmup_fraction is 0"
            )
        if self.schedule == "inverse_sqrt" and self.final_rate:
            raise ValueError("final_rate is the end of the cosine, schedule inverse_sqrt has none")
        return self


class Replan(Config):
    """One correction of the planned length, made when the machine turned out slower than calibrated.

    One that plans no step beyond its own ends the training early.
    """

    at_step: int
    """Step at which the plan changed."""
    steps: int
    """New total number of steps."""


class TrainSettings(Config):
    """How long and on what."""

    steps: int = Field(ge=1)
    """Optimiser steps of the whole run, as first planned."""
    replans: tuple[Replan, ...] = ()
    """Corrections of ``steps`` while running; replayed when the run is resumed or repeated."""
    batch_size: int = Field(ge=1)
    """Size of one optimiser step, over all processes together: a number of samples, or of what the data are
    measured in, such as tokens of sentences."""
    accumulate: int = Field(1, ge=1)
    """Micro-batches into which each process divides its share of a step, one after the other, so that a step
    needs less memory; the gradients are those of the whole step."""
    seed: int = 0
    """Seed of initial weights, order, augmentation and dropout."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of the matrix products; weights and optimiser state stay float32."""
    num_workers: int = Field(0, ge=0)
    """Processes that decode and augment; 0 does it in the training process."""
    cache: bool = True
    """Keep decoded images in memory."""
    checkpoint_every_s: float = Field(60.0, gt=0)
    """Seconds between checkpoints."""
    validations: int = Field(8, ge=0)
    """How often the validation curve is measured, evenly spread over the run."""
    patience: int = Field(0, ge=0)
    """Validations without a better score before the training stops; 0 never stops it."""
    keep: Literal["last", "best"] = "last"
    """Which weights a finished training leaves: the last ones, or those of the best validation."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """What several processes do: replicate the weights, or shard them (FSDP2)."""
    compile: bool = False
    """Compile the model with torch.compile before training."""


class Experiment(Config):
    """Everything that determines a run; ``config.json`` of a run directory holds exactly this."""

    data: DataSettings
    """What is read."""
    model: dict[str, Any]
    """``name`` of the variant, and every field of its config."""
    weights: str | None = None
    """What the training starts from: a run directory, the folder of a saved model or a published model, as
    for ``vitrail.load``; null starts from random weights."""
    task: TaskSettings
    """What is learned."""
    optim: OptimSettings = OptimSettings()
    """How weights are changed."""
    train: TrainSettings
    """How long."""
    budget_s: float | None = None
    """The wall-clock budget that the number of steps was fitted to, in seconds; a record, not an input."""


class ClassificationExperiment(Experiment):
    """A run that learns to classify images."""

    data: ImageDataSettings
    """What is read."""
    task: ClassificationSettings = ClassificationSettings()
    """What is learned."""
    augment: AugmentSettings = AugmentSettings()
    """How training images are varied."""


class TranslationExperiment(Experiment):
    """A run that learns to translate."""

    data: PairDataSettings
    """What is read."""
    task: TranslationSettings = TranslationSettings()
    """What is learned."""


EXPERIMENTS: dict[str, type[Experiment]] = {
    "classification": ClassificationExperiment,
    "translation": TranslationExperiment,
}
"""The kind of experiment of each task."""


def read_experiment(tree: Mapping[str, Any]) -> Experiment:
    """Validate the content of a ``config.json``, whose task says what kind of experiment it is.

    Raises:
        ConfigError: the task is unknown, or a field is unknown, missing or of the wrong type.
    """
    task = tree.get("task")
    name = task.get("name") if isinstance(task, Mapping) else None
    if name not in EXPERIMENTS:
        raise ConfigError(
            f"the settings are for the task {name!r}",
            expected=f"a task among {', '.join(EXPERIMENTS)}",
            remedy="Name the config.json of a run, or install a later version of vitrail",
        )
    return EXPERIMENTS[name].from_tree(tree)
