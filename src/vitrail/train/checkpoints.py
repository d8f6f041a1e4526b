"""Training checkpoints: complete folders ``step-NNNNNN``, of which the newest counts, and the best weights.

``best`` holds the averaged weights of the best validation.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from vitrail.core.config import Config
from vitrail.core.durable import atomic_folder, explained, settle_folder, write_durably
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.core.sealed import sealed
from vitrail.data.stream import SampleSource
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
from vitrail.train.processes import sharded_like, whole_tensor
from vitrail.train.run import MetricsMark, Run
from vitrail.train.settings import TrainSettings
from vitrail.train.step import TrainStep

TRAINING_FORMAT = "vitrail-training"
BEST_FORMAT = "vitrail-best"
BEST_FOLDER = "best"
_STATE_FILE = "state.json"
_TENSORS_FILE = "state.safetensors"
_WEIGHTS_FILE = "weights.safetensors"  # of the best validation
_FOLDER = re.compile(r"step-(\d+)")

_Any = TypeVar("_Any", bound=Config)

logger = logging.getLogger(__name__)


class Best(Config):
    """The best validation of a run."""

    step: int
    value: float
    """The score that models are selected by."""
    scores: dict[str, Any]


class Selected(Config):
    """How far the selection of a run has come."""

    best: Best | None = None
    """None until a score was finite."""
    num_since: int = 0
    """Validations since the best one."""


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
        self.so_far = Selected()

    @property
    def best(self) -> Best | None:
        return self.so_far.best

    def add(self, step: int, scores: dict[str, Any]) -> bool:
        """Record the scores of a validation, and return whether it is the best so far."""
        if self.best_by is None:
            return False
        name, goal = self.best_by
        value, sign = scores[name], 1 if goal == "max" else -1
        is_finite = isinstance(value, int | float) and math.isfinite(value)  # JSON says null for NaN
        if is_finite and (self.best is None or sign * value > sign * self.best.value):
            self.so_far = Selected(best=Best(step=step, value=float(value), scores=scores))
            return True
        self.so_far = Selected(best=self.best, num_since=self.so_far.num_since + 1)
        return False

    @property
    def is_hopeless(self) -> bool:
        return 0 < self.patience <= self.so_far.num_since

    def stopped_early(self, step: int, former_steps: int) -> StoppedEarly:
        best_step, best = (self.best.step, self.best.value) if self.best else (None, None)
        return StoppedEarly(step, former_steps, best_step, self.best_by and self.best_by[0], best)


def select_by(objective: Objective, validation: SampleSource | None, settings: TrainSettings) -> Selection:
    """Return the selection that the settings ask for.

    Raises:
        ConfigError: they ask for it, but nothing is validated or the objective names no score to choose by.
    """
    if not settings.patience and settings.keep == "last":
        return Selection(None, settings)
    asked = f"train.patience is {settings.patience} and train.keep is {settings.keep}"
    if not validation or not settings.validations:
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
    """Write the averaged weights of a step that was just validated as the best ones; as ``save_training``."""
    with train_step.averaged():
        tensors = {name: whole_tensor(tensor) for name, tensor in state_tensors(train_step.model).items()}
        content = to_bytes(tensors) if train_step.processes.is_first else b""
    if train_step.processes.is_first:
        facts = {"step": best.step, "value": best.value}
        _write(root / BEST_FOLDER, BEST_FORMAT, facts, _WEIGHTS_FILE, content)
    train_step.processes.wait()


def load_best(root: Path, best: Best, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read the weights of the best validation, with the names and shapes of some tensors.

    Raises:
        CheckpointError: they are missing, damaged, or of another step or model.
    """
    path = root / BEST_FOLDER
    state = _read(path, BEST_FORMAT, _BestState)
    if state.step != best.step:
        raise CheckpointError(
            f"{path} holds the weights of step {state.step}",
            expected=f"those of step {best.step}, the best validation of the training checkpoint",
            remedy="Restore the folder, or train again",
        )
    tensors = read_tensors(path / _WEIGHTS_FILE, sha256=state.sha256)
    check_same_tensors(targets, tensors, origin=path / _WEIGHTS_FILE)
    return tensors


class Position(Config):
    """The position of a run at a checkpoint."""

    step: int
    elapsed_s: float
    """Training time so far."""
    scores: dict[str, Any]
    """Scores of the last validation; empty before the first one."""
    selection: Selected
    """Not taken from ``metrics.jsonl``, which may lose its last lines in a power failure."""
    metrics: MetricsMark | None = None
    """``metrics.jsonl`` as it was; None in older checkpoints."""


class _State(Config):
    """What ``state.json`` of any folder says."""

    format: str
    version: int
    step: int
    sha256: str
    """Of the tensors."""


class _BestState(_State):
    value: float


class _TrainingState(Position, _State):
    threads: int
    processes: int
    torch: str
    part_names: tuple[str, ...]
    sums: tuple[float, ...]
    num_summed: int


def _circumstances(train_step: TrainStep) -> dict[str, Any]:
    """Return what results depend on in their last digits."""
    return {
        "threads": torch.get_num_threads(),
        "processes": train_step.processes.world_size,
        "torch": torch.__version__,
    }


def save_training(root: Path, train_step: TrainStep, position: Position) -> Path:
    """Write a checkpoint, then remove older ones; every process calls this, the first one writes.

    Errors are those of ``atomic_folder``; the former checkpoint is then kept.
    """
    folder = root / f"step-{position.step:06d}"
    tensors = {name: whole_tensor(tensor) for name, tensor in _live_tensors(train_step).items()}
    if train_step.processes.is_first:
        facts = {
            **position.model_dump(),
            **_circumstances(train_step),
            "part_names": train_step.part_names,
            "sums": train_step.sums.tolist(),
            "num_summed": train_step.num_summed,
        }
        _write(folder, TRAINING_FORMAT, facts, _TENSORS_FILE, to_bytes(tensors))
        prune_checkpoints(root, kept=folder)
    train_step.processes.wait()
    return folder


def _write(folder: Path, kind: str, facts: Mapping[str, Any], tensors_file: str, tensors: bytes) -> None:
    """Replace a folder of tensors and of what ``_read`` reads about them."""
    digest = hashlib.sha256(tensors).hexdigest()
    description = {"format": kind, "version": FORMAT_VERSION, **facts, "sha256": digest}
    with atomic_folder(folder) as staged:
        write_durably(staged / tensors_file, tensors)
        write_durably(staged / _STATE_FILE, sealed(description))


def _read(folder: Path, kind: str, state: type[_Any]) -> _Any:
    path = folder / _STATE_FILE
    return state.from_file(path, read_description(path, kind), remedy="Restore the file, or train again")


def newest_checkpoint(root: Path) -> Path | None:
    """Finish replacements that were killed, and return the folder of the newest checkpoint, or None."""
    with explained(root):
        for ready in root.glob(".*.ready"):
            settle_folder(root / ready.name.removeprefix(".").removesuffix(".ready"))
    return _newest(root)


def _newest(root: Path) -> Path | None:
    complete = [path for path in root.glob("step-*") if _FOLDER.fullmatch(path.name)]
    return max(complete, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def read_metrics(run: Run) -> list[dict[str, Any]]:
    """Return the metrics of a run, verified by its newest checkpoint; else ``CheckpointError``."""
    folder = _newest(run.checkpoints)
    if folder is not None:
        run.verify_metrics(_read(folder, TRAINING_FORMAT, _TrainingState).metrics)
    return run.metrics()


def newest_step(root: Path) -> int:
    """Return the step of the newest complete checkpoint; 0 without one."""
    folder = newest_checkpoint(root)
    return 0 if folder is None else int(folder.name.removeprefix("step-"))


def prune_checkpoints(root: Path, *, kept: Path) -> None:
    """Remove every checkpoint but one and the best weights, and leftovers of interrupted writes."""
    for path in [*root.glob("step-*"), *root.glob(".*")]:
        if path != kept:
            with explained(path):
                shutil.rmtree(path)


def load_training(folder: Path, train_step: TrainStep) -> Position:
    """Load a checkpoint in place: weights, average, optimiser state and running sums.

    Raises:
        CheckpointError: the checkpoint is damaged, of a later version or of another model.
    """
    state = _read(folder, TRAINING_FORMAT, _TrainingState)
    stored = read_tensors(folder / _TENSORS_FILE, sha256=state.sha256)
    groups: dict[str, dict[str, Tensor]] = {"weights": {}, "average": {}, "optimiser": {}}
    for key, tensor in stored.items():
        group, _, name = key.partition("/")
        groups[group][name] = tensor
    _copy(groups["weights"], state_tensors(train_step.model), folder)
    if train_step.average is not None:
        _copy(groups["average"], train_step.average.tensors(), folder)
    train_step.optimisers.restore(
        {
            key: _placed(tensor, train_step.optimisers.parameter(key))
            for key, tensor in groups["optimiser"].items()
        }
    )
    train_step.part_names = state.part_names
    train_step.clear_sums()
    train_step.sums += torch.tensor(state.sums, dtype=torch.float64, device=train_step.sums.device)
    train_step.num_summed = state.num_summed
    for name, value in _circumstances(train_step).items():
        if value != getattr(state, name):
            logger.warning(
                "resuming with %s = %s, the run had %s: results will differ in the last digits "
                "from those of a run that never stopped",
                name,
                value,
                getattr(state, name),
            )
    return state


def _live_tensors(train_step: TrainStep) -> dict[str, Tensor]:
    average = {} if train_step.average is None else train_step.average.tensors()
    groups = {
        "weights": state_tensors(train_step.model),
        "average": average,
        "optimiser": train_step.optimisers.state(),
    }
    return {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}


def _copy(stored: dict[str, Tensor], targets: dict[str, Tensor], folder: Path) -> None:
    check_same_tensors(targets, stored, origin=folder / _TENSORS_FILE)
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(sharded_like(stored[name], target))


def _placed(stored: Tensor, parameter: Tensor) -> Tensor:
    # A copy, because the loaded memory may have any alignment, and kernels round by alignment.
    own = stored.to(parameter.device, copy=True)
    return sharded_like(own, parameter) if own.shape == parameter.shape else own
