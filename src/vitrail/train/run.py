"""A run directory: everything needed to repeat, resume or use a training."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import torch

from vitrail import __version__
from vitrail.core.config import Config
from vitrail.core.durable import atomic_write, explained
from vitrail.core.errors import CheckpointError
from vitrail.train.machine import cpu_name
from vitrail.train.settings import Experiment, Replan

_PACKAGES = ("torch", "numpy", "pillow", "safetensors", "pydantic")


class Run:
    """An open run directory.

    Args:
        experiment: the content of ``config.json``.
    """

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self.path, self.experiment = path, experiment

    @classmethod
    def create(cls, root: Path, experiment: Experiment, choices: Any, *, name: str | None = None) -> Self:
        """Create a directory and write what is known before training.

        Args:
            choices: plain JSON values: every automatic choice with its reason.
            name: ``DATE-TIME-DATA-MODEL`` by default; a number is appended if it is taken.

        Raises:
            CheckpointError: the directory cannot be written.
        """
        path = _new_folder(root, name or dated_name(experiment.data.source, experiment.model.name))
        run = cls(path, experiment)
        _write_json(path / "choices.json", choices)
        _write_json(path / "environment.json", describe_environment())
        run._write_experiment()
        return run

    @classmethod
    def open(cls, path: Path, read: Callable[[Mapping[str, Any]], Experiment]) -> Self:
        """Open an existing run directory.

        Args:
            read: parses ``config.json``; each task has its own experiment class.

        Raises:
            CheckpointError: the directory or its ``config.json`` is missing or damaged.
            ConfigError: a setting in ``config.json`` is unknown or does not fit.
        """
        source = path / "config.json"
        try:
            tree = json.loads(source.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{source} cannot be read: {getattr(error, 'strerror', None) or error}",
                expected="a run directory with its config.json",
                remedy="Give the directory that vitrail train printed, such as runs/NAME",
            ) from None
        return cls(path, read(tree))

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model_folder(self) -> Path:
        return self.path / "model"

    def log(self, **values: Any) -> None:
        """Append a line to ``metrics.jsonl``; ``step`` is among the values."""
        line = json.dumps(_finite(values)) + "\n"
        path = self.path / "metrics.jsonl"
        with explained(path), path.open("a", encoding="utf-8") as file:
            file.write(line)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl``, without a last one that was cut off by a kill."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
        return [json.loads(line) for line in lines[:-1]]

    def rewind(self, step: int) -> None:
        """Drop the metrics after a step, which a resumed run logs again."""
        kept = [entry for entry in self.metrics() if entry["step"] <= step]
        atomic_write(self.path / "metrics.jsonl", "".join(json.dumps(entry) + "\n" for entry in kept))

    def replan(self, replan: Replan) -> None:
        """Record a corrected number of steps in ``config.json``.

        Drops corrections at later steps, recorded by the run that this one repeats.
        """
        train = self.experiment.train
        former = tuple(other for other in train.replans if other.at_step <= replan.at_step)
        changed = train.model_copy(update={"replans": (*former, replan)})
        self.experiment = self.experiment.model_copy(update={"train": changed})
        self._write_experiment()

    def _write_experiment(self) -> None:
        _write_json(self.path / "config.json", self.experiment)


def find_run(root: Path, name: str) -> Path | None:
    """Return the newest run directory of a name, including numbered ones."""
    numbers = {
        int(match[1] or 1): path
        for path in root.glob("*")
        if (match := re.fullmatch(rf"{re.escape(name)}(?:-(\d+))?", path.name))
        and (path / "config.json").exists()
    }
    return numbers[max(numbers)] if numbers else None


def describe_environment() -> dict[str, Any]:
    """Return versions, CPU, threads and command line, as plain JSON values."""
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": sys.argv,
        "vitrail": __version__,
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def dated_name(source: str, what: str) -> str:
    """Return a name made of date, data and something else."""
    parts = [Path(source.rstrip("/")).name, what]
    words = [re.sub(r"[^a-z0-9_]+", "-", part.lower()).strip("-") for part in parts]
    return "-".join([datetime.now().strftime("%Y%m%d-%H%M%S"), *[word for word in words if word]])


def _new_folder(root: Path, name: str) -> Path:
    for number in range(1, 1000):
        path = root / (name if number == 1 else f"{name}-{number}")
        with explained(path), suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise CheckpointError(
        f"{root} already holds a thousand runs named {name}",
        expected="a free name",
        remedy="Choose another folder for runs",
    )


def _write_json(path: Path, value: Config | Sequence[Any] | dict[str, Any]) -> None:
    tree = value.model_dump(mode="json") if isinstance(value, Config) else value
    atomic_write(path, json.dumps(tree, indent=2, ensure_ascii=False) + "\n")


def _finite(value: Any) -> Any:
    """Replace NaN and infinities by null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
