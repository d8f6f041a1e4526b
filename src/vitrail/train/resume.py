"""Training checkpoints: complete folders ``step-NNNNNN``, of which the newest counts."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.core.durable import atomic_folder, settle_folder, write_durably
from vitrail.models.checkpoint import (
    FORMAT_VERSION,
    check_same_tensors,
    read_description,
    read_tensors,
    state_tensors,
    to_bytes,
)
from vitrail.train.processes import sharded_like, whole_tensor
from vitrail.train.step import TrainStep

TRAINING_FORMAT = "vitrail-training"
_STATE_FILE = "state.json"
_TENSORS_FILE = "state.safetensors"
_FOLDER = re.compile(r"step-(\d+)")

logger = logging.getLogger(__name__)


class Position(NamedTuple):
    """The position of a run at a checkpoint."""

    step: int
    elapsed_s: float
    """Training time so far."""
    scores: dict[str, Any]
    """Scores of the last validation; empty before the first one."""
    selection: dict[str, Any]
    """From ``Selection.to_json``; ``metrics.jsonl`` may lose its last lines in a power failure."""


def save_training(root: Path, train_step: TrainStep, position: Position) -> Path:
    """Write a checkpoint, then remove older ones; every process calls this, the first one writes.

    Raises:
        CheckpointError: the disk is full or not writable; the former checkpoint is kept.
    """
    folder = root / f"step-{position.step:06d}"
    tensors = {name: whole_tensor(tensor) for name, tensor in _live_tensors(train_step).items()}
    if train_step.processes.is_first:
        content = to_bytes(tensors)
        description = {
            "format": TRAINING_FORMAT,
            "version": FORMAT_VERSION,
            **position._asdict(),
            "threads": torch.get_num_threads(),
            "processes": train_step.processes.world_size,
            "torch": torch.__version__,
            "part_names": train_step.part_names,
            "sums": train_step.sums.tolist(),
            "num_summed": train_step.num_summed,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        with atomic_folder(folder) as staged:
            write_durably(staged / _TENSORS_FILE, content)
            write_durably(staged / _STATE_FILE, json.dumps(description, indent=2) + "\n")
        prune_checkpoints(root, kept=folder)
    train_step.processes.wait()
    return folder


def newest_checkpoint(root: Path) -> Path | None:
    """Return the folder of the newest complete checkpoint, or None."""
    for ready in root.glob(".step-*.ready"):
        settle_folder(root / ready.name.removeprefix(".").removesuffix(".ready"))
    complete = [path for path in root.glob("step-*") if _FOLDER.fullmatch(path.name)]
    return max(complete, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def prune_checkpoints(root: Path, *, kept: Path) -> None:
    """Remove every checkpoint but one, and leftovers of interrupted writes."""
    for path in [*root.glob("step-*"), *root.glob(".step-*")]:
        if path != kept:
            shutil.rmtree(path)


def load_training(folder: Path, train_step: TrainStep) -> Position:
    """Load a checkpoint in place: weights, average, optimiser state and running sums.

    Raises:
        CheckpointError: the checkpoint is damaged, of a later version or of another model.
    """
    description = read_description(folder / _STATE_FILE, TRAINING_FORMAT)
    stored = read_tensors(folder / _TENSORS_FILE, sha256=description["sha256"])
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
    train_step.part_names = tuple(description["part_names"])
    train_step.clear_sums()
    train_step.sums += torch.tensor(description["sums"], dtype=torch.float64, device=train_step.sums.device)
    train_step.num_summed = description["num_summed"]
    _warn_of_differences(description, train_step.processes.world_size)
    return Position(*(description[name] for name in Position._fields))


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


def _warn_of_differences(description: dict[str, Any], world_size: int) -> None:
    now = {
        "threads": torch.get_num_threads(),
        "processes": world_size,
        "torch": torch.__version__,
    }
    for name, value in now.items():
        if value != description[name]:
            logger.warning(
                "resuming with %s = %s, the run had %s: results will differ in the last digits "
                "from those of a run that never stopped",
                name,
                value,
                description[name],
            )
