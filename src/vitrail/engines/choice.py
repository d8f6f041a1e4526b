"""Benchmark results of a model on a machine, and the choice of the fastest engine by them.

They are stored beside the run or in the user's cache; ``vitrail bench`` writes them and ``engine="auto"``
reads them.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from pydantic import Field

from vitrail.core.config import Config, PlainName
from vitrail.core.durable import atomic_write
from vitrail.core.errors import CheckpointError, ConfigError, VitrailError
from vitrail.engines.contract import AUTOMATIC, Engine, EngineName, Inputs, build_engine
from vitrail.engines.export.package import Package, Precision, digest_model
from vitrail.engines.loading import MODEL_FOLDER, Source
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.merged import MergedViT
from vitrail.train.machine import count_cores, cpu_name

CHOICES_FILE = "engines.json"
CHOICES_FOLDER = "engines"  # of a run, or of a saved model's folder
FORM_VERSION = 1
NUM_DIGITS = 12  # of a digest in folder names

logger = logging.getLogger(__name__)


class BenchResult(Config):
    """Results of one engine, precision and batch size, or the reason for having none."""

    engine: EngineName
    precision: Precision
    """Of the matrix products."""
    batch: int = Field(default=1, ge=1)
    """Batch size."""
    images_per_s: float = 0.0
    """Median over the rounds; 0 on failure."""
    p50_ms: float = 0.0
    """Median time of a pass."""
    p99_ms: float = 0.0
    """99th percentile of a pass; the slowest of few."""
    peak_mib: float = 0.0
    """Peak memory of the process, including libraries and weights."""
    ceiling_share: float | None = None
    """Fraction of the matrix product's rate in its precision, round by round."""
    agrees: bool = False
    """Whether its outputs agree with the torch model's."""
    package: PlainName | None = None
    """Folder of the exported model among the stored results; None if the engine takes the model itself."""
    is_kept: bool = True
    """Whether it can be started again: the calibration of torch int8 is not stored."""
    reason: str | None = None
    """Why it has no figures, or does not agree."""

    @property
    def ran(self) -> bool:
        return self.images_per_s > 0


class EngineChoices(Config):
    """The content of ``engines.json``."""

    version: int = Field(default=FORM_VERSION, ge=1, le=FORM_VERSION)
    """Version of this format."""
    machine: str
    """Description of the machine."""
    threads: int = Field(ge=1)
    """Threads per engine."""
    weights: str
    """Digest of the model."""
    measured: tuple[BenchResult, ...]
    """Every engine that ran."""


def start_engine(
    source: Source,
    opened: LoadedModel | Package,
    *,
    engine: str | None,
    precision: str | None,
    device: str | torch.device | None,
    batch_size: int,
    calibration: Sequence[Inputs],
    trust: bool = False,
) -> Engine:
    """Start the requested engine of a model, or with ``auto`` the fastest one whose outputs agree.

    Args:
        source: of the model; its benchmark results are stored beside it.
        engine: as ``build_engine``, or ``auto``.
        precision: as ``build_engine``; restricts ``auto``.
        batch_size: determines the fastest engine.
        trust: as ``build_engine``; never applies to packages stored with benchmark results.

    Raises:
        ConfigError: as ``build_engine``.
        DataError: as ``build_engine``.
    """
    if engine != AUTOMATIC:
        return build_engine(
            opened, engine=engine, precision=precision, device=device, calibration=calibration, trust=trust
        )
    if isinstance(opened, Package):
        raise ConfigError(
            f"engine=auto was given for {opened.folder}, an export for one engine",
            expected="a run or the folder of a saved model",
            remedy="Leave the engine out, or name the run",
        )
    automatic_device = "cuda" if torch.cuda.is_available() else "cpu"
    if torch.device(automatic_device if device is None else device).type == "cpu":
        chosen = _start_fastest(source, opened, precision, batch_size)
        if chosen is not None:
            return chosen
    return build_engine(opened, precision=precision, device=device, calibration=calibration)


def _start_fastest(
    source: Source, opened: LoadedModel, precision: str | None, batch_size: int
) -> Engine | None:
    if isinstance(opened.model, MergedViT):
        logger.warning("benchmarks do not include token merging; torch runs this model, which merges tokens")
        return None
    folder = choices_folder(source, opened)
    choices = None if folder is None else read_choices(folder, opened)
    if folder is None or choices is None:
        logger.warning(
            "no engine was measured on this machine for this model; torch runs it. See vitrail bench"
        )
        return None
    for each in rank(choices, batch_size, precision):
        try:
            package = None if each.package is None else Package.read(folder / each.package)
            if package is not None and package.weights != choices.weights:
                raise CheckpointError(
                    f"{package.folder} is the export of another model",
                    expected="an export of the model that was measured",
                    remedy="Measure it again with vitrail bench",
                )
            # Torch's own engines are built from the model.
            return build_engine(package or opened, engine=each.engine, precision=each.precision, device="cpu")
        except VitrailError as error:
            logger.warning("%s in %s does not start: %s", each.engine, each.precision, error)
    return None


def rank(choices: EngineChoices, batch_size: int, precision: str | None = None) -> list[BenchResult]:
    """Return the agreeing engines at the nearest measured batch size, fastest first.

    Args:
        batch_size: the largest measured one up to it counts, else the smallest.
        precision: restricts the choice.
    """
    usable = [
        each
        for each in choices.measured
        if each.agrees and each.is_kept and precision in (None, each.precision)
    ]
    batches = sorted({each.batch for each in usable})
    nearest = max((batch for batch in batches if batch <= batch_size), default=next(iter(batches), None))
    of_batch = [each for each in usable if each.batch == nearest]
    return sorted(of_batch, key=lambda each: each.images_per_s, reverse=True)


def choices_folder(source: Source, opened: LoadedModel) -> Path | None:
    """Return the folder of a model's benchmark results; None if it has neither path nor name.

    Different weights of one model name have separate folders in the user's cache.
    """
    if isinstance(source, str | Path) and Path(source).is_dir():
        path = Path(source)
        return (path.parent if path.name == MODEL_FOLDER else path) / CHOICES_FOLDER
    name = opened.model_settings.get("name")
    if name is None or isinstance(source, Package):
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "vitrail" / CHOICES_FOLDER / f"{name}-{digest_model(opened)[:NUM_DIGITS]}"


def read_choices(folder: Path, opened: LoadedModel) -> EngineChoices | None:
    """Return the benchmark results of this model on this machine, if there are any."""
    path = folder / CHOICES_FILE
    choices = _read_file(path)
    if choices is None:
        return None
    if choices.machine != describe_machine():
        logger.warning("%s was measured on another machine: %s", path, choices.machine)
        return None
    if choices.weights != digest_model(opened):
        logger.warning("%s was measured with other weights", path)
        return None
    if choices.threads != torch.get_num_threads():
        logger.warning(
            "%s was measured with %d threads, and here are %d: another engine may be faster",
            path,
            choices.threads,
            torch.get_num_threads(),
        )
    return choices


def why_unwritable(folder: Path) -> str | None:
    """Return why nothing can be written to a folder, which is created if need be; None if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder} could not be written: {error.strerror}"


def write_choices(folder: Path, choices: EngineChoices) -> None:
    """Replace the stored benchmark results.

    Raises:
        CheckpointError: the disk is full or not writable.
    """
    atomic_write(folder / CHOICES_FILE, json.dumps(choices.model_dump(mode="json"), indent=2) + "\n")


def add_former(folder: Path, choices: EngineChoices, failed: Collection[tuple[str, str]]) -> EngineChoices:
    """Merge new results with stored ones of other engines, precisions and batch sizes.

    Only results of the same machine, thread count and model are kept.

    Args:
        failed: engines and precisions that failed now, whose stored results are dropped.
    """
    former = _read_file(folder / CHOICES_FILE)
    fields = ("machine", "threads", "weights")
    if former is None or any(getattr(former, name) != getattr(choices, name) for name in fields):
        return choices
    anew = {(each.engine, each.precision, each.batch) for each in choices.measured}
    kept = [
        each
        for each in former.measured
        if (each.engine, each.precision) not in failed
        and (each.engine, each.precision, each.batch) not in anew
    ]
    return choices.model_copy(update={"measured": (*choices.measured, *kept)})


def _read_file(path: Path) -> EngineChoices | None:
    """Read a results file; None if missing, or unusable, which is logged."""
    try:
        return EngineChoices.from_tree(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, ConfigError) as error:
        logger.warning("%s cannot be used: %s", path, error)
        return None


def describe_machine() -> str:
    """Return the CPU model and the number of available cores."""
    return f"{cpu_name()}, {count_cores()} cores"
