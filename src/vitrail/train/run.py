"""A run directory: everything needed to repeat, resume or use a training."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from pydantic import Field
from pydantic_core import to_json

from vitrail import __version__
from vitrail.core.config import Config
from vitrail.core.durable import atomic_write, explained, locked, remove
from vitrail.core.errors import CheckpointError, reading
from vitrail.core.files import parse_json
from vitrail.core.sealed import read_sealed, write_sealed
from vitrail.train.machine import cpu_name
from vitrail.train.settings import Experiment, Replan

_PACKAGES = ("torch", "numpy", "pillow", "safetensors", "pydantic")

_log = logging.getLogger(__name__)


class MetricsMark(Config):
    """``metrics.jsonl`` as it was at a checkpoint: its length and a digest of it."""

    bytes: int
    sha256: str


class Choice(NamedTuple):
    """One automatic choice."""

    setting: str
    """Dotted path in the experiment."""
    value: str
    reason: str


class Record(Config):
    """What a run wrote before its training, for its report."""

    choices: tuple[Choice, ...] = ()
    verdict_lines: tuple[str, ...] = ()
    """Findings of the data doctor."""
    environment: dict[str, Any] = Field(default_factory=dict)


class Run:
    """An open run directory.

    Args:
        experiment: the content of ``config.json``.
    """

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self.path, self.experiment = path, experiment
        self.checkpoints, self.model_folder = path / "checkpoints", path / "model"
        self.metrics_path = path / "metrics.jsonl"

    @classmethod
    def create(
        cls,
        root: Path,
        experiment: Experiment,
        choices: Sequence[Choice] = (),
        *,
        name: str | None = None,
        verdict: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Self:
        """Create a directory and write what is known before training.

        ``config.json`` comes last: with it the directory is a run, which can be resumed.

        Args:
            choices: every automatic choice with its reason.
            name: ``DATE-TIME-DATA-MODEL`` by default; a number is appended if it is taken.
            verdict: what the doctor found, with its summary as ``lines``.
            files: content of further files, by path in the directory.

        Raises:
            CheckpointError: the directory cannot be written.
        """
        path = _new_folder(root, name or dated_name(experiment.data.source, experiment.model.name))
        run = cls(path, experiment)
        try:
            run.write_choices(choices)
            write_sealed(path / "environment.json", describe_environment())
            if verdict is not None:
                write_sealed(path / "verdict.json", verdict)
            for file, content in (files or {}).items():
                atomic_write(path / file, content)
            run._write_experiment()
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return run

    @classmethod
    def open(cls, path: Path, read: Callable[[Mapping[str, Any]], Experiment]) -> Self:
        """Open an existing run directory; ``CheckpointError`` if its ``config.json`` is missing or damaged.

        Args:
            read: parses ``config.json``; each task has its own experiment class.
        """
        tree = read_sealed(
            path / "config.json",
            expected="a run directory with its config.json",
            remedy="Give the directory that vitrail train printed, such as runs/NAME",
        )
        return cls(path, read(tree))

    def log(self, **values: Any) -> None:
        """Append a line to ``metrics.jsonl``; ``step`` is among the values."""
        with explained(self.metrics_path), self.metrics_path.open("ab") as file:
            file.write(to_json(values, inf_nan_mode="null") + b"\n")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process write into the directory, and remove what killed ones left; as ``locked``."""
        with locked(self.path / ".lock"):
            for abandoned in self.path.glob(".*.writing-*"):
                remove(abandoned)
            yield

    def flush_metrics(self) -> MetricsMark:
        """Wait until ``metrics.jsonl`` is on the disk, and return what a checkpoint says of it."""
        with explained(self.metrics_path), self.metrics_path.open("ab") as file:
            os.fsync(file.fileno())
        return _mark(self._logged())

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl``, without a last one that was cut off by a kill."""
        entries = [read_entry(line) for line in self._logged().split(b"\n")[:-1]]
        if None in entries:
            raise CheckpointError(
                f"line {entries.index(None) + 1} of {self.metrics_path} is damaged",
                expected="a JSON object with the field step",
                remedy="Restore the file, or remove that line; only curves depend on it",
            )
        return [entry for entry in entries if entry is not None]

    def rewind(self, step: int, mark: MetricsMark | None = None) -> None:
        """Drop the metrics after a step, which a resumed run logs again.

        Args:
            mark: what the checkpoint of that step says of them; errors are those of ``verify_metrics``.
        """
        self.verify_metrics(mark, may_lack_lines=True)
        lines = zip(self._logged().split(b"\n"), self.metrics(), strict=False)  # not one that was cut off
        kept = [line + b"\n" for line, entry in lines if entry["step"] <= step]
        atomic_write(self.metrics_path, b"".join(kept))

    def verify_metrics(self, mark: MetricsMark | None, *, may_lack_lines: bool = False) -> None:
        """Raise ``CheckpointError`` unless ``metrics.jsonl`` begins as it was at a checkpoint.

        Args:
            may_lack_lines: warn of missing ones, as after a power failure.
        """
        content = self._logged()
        if mark is None or _mark(content[: mark.bytes]) == mark:
            return
        if not may_lack_lines or len(content) >= mark.bytes:
            raise CheckpointError(
                f"{self.metrics_path} was damaged or changed after it was written",
                expected="the lines that the newest checkpoint was saved with",
                remedy="Restore the file, or remove it; only curves depend on it",
            )
        _log.warning("%s lacks lines, as after a power failure; curves will have a gap", self.metrics_path)

    def record(self) -> Record:
        """Return what was written before the training; ``CheckpointError`` if a file of it is damaged."""
        tree = {
            "choices": self._stored("choices.json", list_field="choices").get("choices", ()),
            "verdict_lines": self._stored("verdict.json").get("lines", ()),
            "environment": self._stored("environment.json"),
        }
        files = f"choices.json or verdict.json of {self.path}"
        remedy = "Restore the file, or remove it; only the report depends on it"
        return Record.from_file(files, tree, remedy=remedy)

    def write_choices(self, choices: Sequence[Choice]) -> None:
        write_sealed(self.path / "choices.json", {"choices": [choice._asdict() for choice in choices]})

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
        write_sealed(self.path / "config.json", self.experiment.model_dump(mode="json"))

    def _logged(self) -> bytes:
        with reading(self.metrics_path, expected="a readable file", remedy="Restore it"):
            return self.metrics_path.read_bytes() if self.metrics_path.exists() else b""

    def _stored(self, name: str, list_field: str | None = None) -> dict[str, Any]:
        path = self.path / name
        return read_sealed(path, list_field=list_field) if path.exists() else {}


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


def read_entry(line: bytes | str) -> dict[str, Any] | None:
    """Return a line of ``metrics.jsonl``; None if it is damaged."""
    try:
        entry = parse_json(line)
    except ValueError:
        return None
    is_whole = isinstance(entry, dict) and type(entry.get("step")) is int and entry["step"] < 2**63
    return entry if is_whole else None


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


def _mark(content: bytes) -> MetricsMark:
    return MetricsMark(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
