"""Settings common to all trainings; each task adds its own in ``tasks/<name>/settings.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from vitrail.core.config import Config
from vitrail.data.settings import DataSettings
from vitrail.models import config_from_settings
from vitrail.models.contract import ModelConfig


class OptimSettings(Config):
    """Optimiser, learning rate schedule and weight averaging."""

    name: Literal["adamw", "muon"] = "adamw"
    """AdamW (Loshchilov and Hutter 2019), or Muon (Jordan et al. 2024) for hidden matrices and convolution
    kernels with AdamW for the rest.
    """
    learning_rate: float = Field(1e-3, gt=0)
    """Peak learning rate of AdamW."""
    matrix_learning_rate: float = Field(0.02, gt=0)
    """Peak learning rate of Muon for hidden matrices; unused by AdamW."""
    weight_decay: float = Field(0.05, ge=0)
    """Decoupled weight decay of matrices; vectors (norms, biases, positions) have none."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of Adam's two moments."""
    clip_norm: float = Field(1.0, ge=0)
    """Maximum global norm of the gradients; 0 disables clipping."""
    warmup_fraction: float = Field(0.1, ge=0, lt=1)
    """Fraction of the steps in which the learning rate rises linearly."""
    schedule: Literal["cosine", "inverse_sqrt"] = "cosine"
    """Decay after the warm-up: half a cosine (Loshchilov and Hutter 2017), or the inverse square root of the
    steps (Vaswani et al. 2017, eq. 3).
    """
    final_rate: float = Field(0.0, ge=0, le=1)
    """Learning rate at the end of the cosine, as a fraction of the peak."""
    average: Literal["ema", "tail"] = "ema"
    """Which weights are validated and kept: an exponential moving average, or the uniform average over the
    tail of the training (Polyak and Juditsky 1992; Vaswani et al. 2017, section 6.1, of checkpoints).
    """
    ema_fraction: float = Field(0.02, ge=0, lt=1)
    """Averaging horizon of the EMA weights as a fraction of all steps; 0 disables the EMA."""
    tail_fraction: float = Field(0.25, gt=0, le=1)
    """Final fraction of the training over which the tail average is taken."""

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
    """One change of the planned length, as when the machine was slower than calibrated.

    One that plans no further step ends the training early.
    """

    at_step: int
    """Step at which the plan changed."""
    steps: int
    """New total number of steps."""
    progress: float | None = None
    """Progress from which a finished training goes on; None goes on from where it is."""


class TrainSettings(Config):
    """Length, batch size, precision and parallelism of a training."""

    steps: int = Field(ge=1)
    """Optimiser steps of the whole run, as first planned."""
    replans: tuple[Replan, ...] = ()
    """Corrections of ``steps`` during the run; replayed when it is resumed or repeated."""
    batch_size: int = Field(ge=1)
    """Size of one optimiser step over all processes: samples, or the data's own unit, such as tokens."""
    accumulate: int = Field(1, ge=1)
    """Gradient accumulation: micro-batches per step and process, to save memory."""
    seed: int = 0
    """Seed of initial weights, order, augmentation and dropout."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the matrix products; weights and optimiser state stay float32."""
    num_workers: int = Field(0, ge=0)
    """Processes that decode and augment; 0 uses the training process."""
    cache: bool = True
    """Keep decoded images in memory."""
    checkpoint_every_s: float = Field(60.0, gt=0)
    """Seconds between checkpoints."""
    validations: int = Field(8, ge=0)
    """Number of validations, evenly spread over the run."""
    patience: int = Field(0, ge=0)
    """Early stopping after so many validations without improvement; 0 disables it."""
    keep: Literal["last", "best"] = "last"
    """Weights that a finished training keeps: the last ones, or those of the best validation."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Data parallelism: replicate the weights (DDP), or shard them (FSDP2)."""
    compile: bool = False
    """Compile the model with torch.compile before training."""


class TaskSettings(Config):
    """What the model is trained to do."""

    name: str
    """The task, a file of ``vitrail/tasks``."""


def _read_model(value: Any) -> Any:
    return config_from_settings(value) if isinstance(value, Mapping) else value


ConfigT = TypeVar("ConfigT", bound=ModelConfig)
ModelSettings = Annotated[SerializeAsAny[ConfigT], BeforeValidator(_read_model)]
"""Settings of a model; JSON holds its name and all fields of its family."""


class Experiment(Config):
    """Everything that determines a run; ``config.json`` of a run directory holds exactly this."""

    data: DataSettings
    """The data set and how it is read."""
    model: ModelSettings[ModelConfig]
    """The model and all of its settings."""
    weights: str | None = None
    """Initial weights: a run directory, a saved model's folder or a published model, as for ``vitrail.load``;
    null starts from random weights.
    """
    task: TaskSettings
    """The task and its settings."""
    optim: OptimSettings = OptimSettings()
    """The optimiser."""
    train: TrainSettings
    """The course of the training."""
    budget_s: float | None = None
    """The wall-clock budget in seconds that the steps were fitted to; a record, not an input."""
