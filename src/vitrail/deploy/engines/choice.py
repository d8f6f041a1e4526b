"""What was measured of a model's engines on a machine, kept beside the run or in the user's cache."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path

import torch
from pydantic import Field

from vitrail.checkpoint import LoadedModel, state_tensors
from vitrail.config import Config
from vitrail.deploy.engines.contract import EngineName
from vitrail.deploy.engines.opening import Source
from vitrail.deploy.export.package import Package, Precision
from vitrail.deploy.loading import MODEL_FOLDER
from vitrail.durable import atomic_write
from vitrail.errors import ConfigError

CHOICES_FILE = "engines.json"
CHOICES_FOLDER = "engines"  # of a run, or of the folder of a saved model
FORM_VERSION = 1

logger = logging.getLogger(__name__)


class Measured(Config):
    """One engine in one precision with one batch size."""

    engine: EngineName
    """Its name."""
    precision: Precision
    """Of the matrix products."""
    batch: int = Field(ge=1)
    """Images of one forward pass."""
    images_per_s: float = Field(gt=0)
    """Median over the rounds."""
    agrees: bool
    """Whether its answers passed the comparison with those of the model in torch."""
    package: str | None = None
    """Folder of the exported model, beside this file; None for engines that take the model itself."""
    is_kept: bool = True
    """Whether the engine can be started again: int8 of torch has ranges of images that are not kept."""


class EngineChoices(Config):
    """All of ``engines.json``."""

    version: int = Field(default=FORM_VERSION, ge=1, le=FORM_VERSION)
    """Of this form."""
    machine: str
    """Where it was measured."""
    threads: int = Field(ge=1)
    """With how many threads."""
    weights: str
    """Digest of the model's weights."""
    measured: tuple[Measured, ...]
    """Every engine that ran."""


def choices_folder(source: Source, opened: LoadedModel) -> Path | None:
    """Return where the measurements of a model are kept; None for one that has neither place nor name.

    Args:
        source: as the user named it.
        opened: what it holds.
    """
    if isinstance(source, str | Path) and Path(source).is_dir():
        path = Path(source)
        return (path.parent if path.name == MODEL_FOLDER else path) / CHOICES_FOLDER
    name = opened.model_settings.get("name")
    return None if name is None or isinstance(source, Package) else cache_folder() / str(name)


def cache_folder() -> Path:
    """Return the folder of this user for what can be measured again."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "vitrail" / CHOICES_FOLDER


def read_choices(folder: Path, opened: LoadedModel) -> EngineChoices | None:
    """Return what was measured of this model on this machine; None where nothing was, or of another.

    Args:
        folder: as ``choices_folder`` returns it.
        opened: the model, whose weights must be those that were measured.
    """
    try:
        choices = EngineChoices.from_tree(json.loads((folder / CHOICES_FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ConfigError) as error:
        logger.warning("%s cannot be used: %s", folder / CHOICES_FILE, error)
        return None
    if choices.machine != describe_machine():
        logger.warning("%s was measured on another machine: %s", folder / CHOICES_FILE, choices.machine)
        return None
    if choices.weights != digest_weights(opened):
        logger.warning("%s was measured with other weights", folder / CHOICES_FILE)
        return None
    return choices


def write_choices(folder: Path, choices: EngineChoices) -> None:
    """Write what was measured, in place of what was before.

    Raises:
        CheckpointError: the disk is full or not writable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / CHOICES_FILE, json.dumps(choices.model_dump(mode="json"), indent=2) + "\n")


def digest_weights(opened: LoadedModel) -> str:
    """Return a digest of the shapes of a model's tensors and of some values of each.

    All values of a large model take longer than its first prediction; an optimiser's step changes them all.
    """
    digest = hashlib.sha256()
    for name, tensor in state_tensors(opened.model).items():
        flat = tensor.flatten()
        some = flat[:: max(len(flat) // 64, 1)].to("cpu", torch.float64).numpy().tobytes()
        digest.update(f"{name} {tuple(tensor.shape)}".encode() + some)
    return digest.hexdigest()


def describe_machine(source: Path = Path("/proc/cpuinfo")) -> str:
    """Return what the processor calls itself, and how many cores this process may use."""
    import platform

    name = platform.processor() or platform.machine()
    try:
        lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []  # not Linux
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{name}, {cores} cores"
