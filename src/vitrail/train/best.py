"""The best validation of a run, and its weights on disk."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from vitrail.core.durable import atomic_folder, settle_folder, write_durably
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.data.sampling import SampleSource
from vitrail.models.checkpoint import (
    FORMAT_VERSION,
    check_same_tensors,
    read_description,
    read_tensors,
    state_tensors,
    to_bytes,
)
from vitrail.train.events import StoppedEarly
from vitrail.train.objective import Objective, Ranking
from vitrail.train.processes import whole_tensor
from vitrail.train.settings import TrainSettings
from vitrail.train.step import TrainStep

BEST_FORMAT = "vitrail-best"
BEST_FOLDER = "best"
_STATE_FILE = "state.json"
_WEIGHTS_FILE = "weights.safetensors"


class Best(NamedTuple):
    """A new best validation."""

    step: int
    value: float
    """The score that models are selected by."""
    scores: dict[str, Any]


class Selection:
    """Tracks the best validation of a run (the earliest among equals) and how long ago it was.

    >>> settings = TrainSettings(steps=20, batch_size=5, patience=1)
    >>> selection = Selection(("accuracy", "max"), settings)
    >>> [selection.add(step, {"accuracy": value}) for step, value in ((5, 0.5), (10, 0.7), (15, 0.7))]
    [True, True, False]
    >>> selection.best.step, selection.is_hopeless
    (10, True)

    Args:
        best_by: name of a score and ``max`` or ``min``; None disables selection.
    """

    def __init__(self, best_by: tuple[str, Literal["max", "min"]] | None, settings: TrainSettings) -> None:
        self.best_by = best_by
        self.patience, self.keeps_best = settings.patience, settings.keep == "best"
        self.best: Best | None = None
        """None until a score was finite."""
        self.num_since = 0

    def add(self, step: int, scores: dict[str, Any]) -> bool:
        """Record the scores of a validation, and return whether it is the best so far."""
        if self.best_by is None:
            return False
        name, goal = self.best_by
        value, sign = scores[name], 1 if goal == "max" else -1
        is_finite = isinstance(value, int | float) and math.isfinite(value)  # JSON says null for NaN
        if is_finite and (self.best is None or sign * value > sign * self.best.value):
            self.best, self.num_since = Best(step, float(value), scores), 0
            return True
        self.num_since += 1
        return False

    def to_json(self) -> dict[str, Any]:
        return {"best": None if self.best is None else self.best._asdict(), "num_since": self.num_since}

    def restore(self, values: dict[str, Any]) -> None:
        self.best = None if values["best"] is None else Best(**values["best"])
        self.num_since = values["num_since"]

    @property
    def is_hopeless(self) -> bool:
        """Whether patience has run out."""
        return 0 < self.patience <= self.num_since

    def stopped_early(self, step: int, former_steps: int) -> StoppedEarly:
        score = None if self.best_by is None else self.best_by[0]
        if self.best is None:
            return StoppedEarly(step, former_steps, best_step=None, score=score, best=None)
        return StoppedEarly(step, former_steps, self.best.step, score, self.best.value)


def select_by(objective: Objective, validation: SampleSource | None, settings: TrainSettings) -> Selection:
    """Return the selection that the settings ask for.

    Raises:
        ConfigError: they ask for it, but nothing is validated or the objective names no score to choose by.
    """
    if not settings.patience and settings.keep == "last":
        return Selection(None, settings)
    asked = f"train.patience is {settings.patience} and train.keep is {settings.keep}"
    if validation is None or not settings.validations:
        raise ConfigError(
            f"{asked}, but nothing is validated during the training",
            expected="train.validations above 0, and validation samples",
            remedy="Raise train.validations and data.validation_fraction, or leave patience 0 and keep last",
        )
    if not isinstance(objective, Ranking):
        raise ConfigError(
            f"{asked}, but {type(objective).__name__} names no score to choose by",
            expected="an objective with the attribute best_by, the name of a score and max or min",
            remedy="Add it to the objective, or leave patience 0 and keep last",
        )
    return Selection(objective.best_by, settings)


def save_best(root: Path, train_step: TrainStep, best: Best) -> None:
    """Write the averaged weights of this step as the best ones, replacing former ones.

    Every process calls this; the first one writes.

    Args:
        train_step: just validated.

    Raises:
        CheckpointError: the disk is full or not writable; the former best weights are kept.
    """
    with train_step.averaged():
        tensors = {name: whole_tensor(tensor) for name, tensor in state_tensors(train_step.model).items()}
        content = to_bytes(tensors) if train_step.processes.is_first else b""
    if train_step.processes.is_first:
        for abandoned in root.glob(f".{BEST_FOLDER}.writing-*"):
            shutil.rmtree(abandoned)
        description = {
            "format": BEST_FORMAT,
            "version": FORMAT_VERSION,
            "step": best.step,
            "value": best.value,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        with atomic_folder(root / BEST_FOLDER) as staged:
            write_durably(staged / _WEIGHTS_FILE, content)
            write_durably(staged / _STATE_FILE, json.dumps(description, indent=2) + "\n")
    train_step.processes.wait()


def stored_step(root: Path) -> int | None:
    """Return the step of the stored best weights, or None.

    Raises:
        CheckpointError: they are of a later version, or damaged.
    """
    settle_folder(root / BEST_FOLDER)
    if not (root / BEST_FOLDER).exists():
        return None
    return int(read_description(root / BEST_FOLDER / _STATE_FILE, BEST_FORMAT)["step"])


def load_best(root: Path, best: Best, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read the weights of the best validation.

    Args:
        targets: tensors of the expected names and shapes.

    Raises:
        CheckpointError: they are missing, damaged, or of another step or model.
    """
    path = root / BEST_FOLDER
    description = read_description(path / _STATE_FILE, BEST_FORMAT)
    if description["step"] != best.step:
        raise CheckpointError(
            f"{path} holds the weights of step {description['step']}",
            expected=f"those of step {best.step}, the best validation of the training checkpoint",
            remedy="Restore the folder, or train again",
        )
    tensors = read_tensors(path / _WEIGHTS_FILE, sha256=description["sha256"])
    check_same_tensors(targets, tensors, origin=path / _WEIGHTS_FILE)
    return tensors
