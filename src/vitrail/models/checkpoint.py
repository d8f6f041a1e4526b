"""Models on disk: one folder of weights and plain text, replaced atomically and verified when read.

Nothing is pickled. A write that fails or is killed at any moment leaves the former content readable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from pydantic import AliasPath, Field
from torch import Tensor, nn

from vitrail.core.config import Config, PlainName
from vitrail.core.durable import atomic_folder, read_folder, write_durably
from vitrail.core.errors import CheckpointError, reading
from vitrail.core.files import read_file
from vitrail.core.sealed import read_sealed, sealed
from vitrail.data.findings import some_of
from vitrail.models.unfilled import Unfilled

CLASS_IDS_FILE = "class_ids.json"  # detectors: dataset ids of the classes, in label order
MODEL_FORMAT = "vitrail-model"
FORMAT_VERSION = 1
WEIGHTS_FILE = "model.safetensors"
MODEL_FILE = "model.json"
MOST_COMPUTED_BYTES = 2**29  # of buffers, as of masks of windows and of statistics


class _Description(Config, extra="ignore"):
    """The content of ``model.json`` as far as it is read."""

    model: dict[str, Any]
    preprocessing: dict[str, Any]
    class_names: list[str]
    about: dict[str, Any]
    sha256: str = Field(validation_alias=AliasPath("weights", "sha256"))
    """Digest of the weights."""
    files: dict[PlainName, str] = Field(default_factory=dict)


class LoadedModel(NamedTuple):
    """A model with its preprocessing and metadata, as in a folder."""

    model: nn.Module
    """In evaluation mode, on the CPU."""
    model_settings: dict[str, Any]
    """The model's name and every field of its config."""
    preprocessing: dict[str, Any]
    """How inputs are prepared."""
    class_names: list[str]
    """One name for each output."""
    about: dict[str, Any]
    """Provenance: data, run, score, versions."""
    files: Mapping[str, bytes] = {}
    """Further files needed for preprocessing, such as vocabularies, by name."""

    @property
    def config(self) -> Any:
        """The model's settings, of its family's class."""
        from vitrail.models import config_from_settings

        return config_from_settings(self.model_settings)

    def save(self, folder: Path) -> None:
        """Write ``model.safetensors`` and ``model.json``, atomically replacing a former model in the folder.

        Parameters and persistent buffers are stored; tied tensors once.

        Raises:
            CheckpointError: the disk is full or not writable.
        """
        tensors = state_tensors(self.model)
        weights = to_bytes(tensors)
        description = {
            "format": MODEL_FORMAT,
            "version": FORMAT_VERSION,
            "model": self.model_settings,
            "preprocessing": self.preprocessing,
            "class_names": self.class_names,
            "about": self.about,
            "weights": {
                "file": WEIGHTS_FILE,
                "sha256": hashlib.sha256(weights).hexdigest(),
                "bytes": len(weights),
                "tensors": len(tensors),
                "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            },
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()},
        }
        with atomic_folder(folder) as staged:
            write_durably(staged / WEIGHTS_FILE, weights)
            for name, content in self.files.items():
                write_durably(staged / name, content)
            write_durably(staged / MODEL_FILE, sealed(description))


def load_model(folder: Path) -> LoadedModel:
    """Read and verify what ``LoadedModel.save`` wrote.

    Raises:
        CheckpointError: a file is missing, damaged, from a later version or holds another model's weights.
    """
    return read_folder(folder, _load_model)


def _load_model(folder: Path) -> LoadedModel:
    from vitrail.models import config_from_settings

    description = read_description(folder / MODEL_FILE, MODEL_FORMAT)
    remedy = "Save the model again, or restore the file"
    stored = _Description.from_file(
        folder / MODEL_FILE,
        description,
        remedy=remedy,
        expected="the fields model, preprocessing, class_names, about and weights",
    )
    tensors = read_tensors(folder / WEIGHTS_FILE, sha256=stored.sha256)
    config = config_from_settings(stored.model)
    num_classes = getattr(config, "num_classes", None)
    if stored.class_names and num_classes not in (None, len(stored.class_names)):
        raise CheckpointError(
            f"{folder / MODEL_FILE} has {len(stored.class_names)} class_names for {num_classes} classes",
            expected="a name for each class",
            remedy=remedy,
        )
    model = build_to_fit(config, tensors, origin=folder / WEIGHTS_FILE)
    files = {name: _read_verified(folder / name, sha256) for name, sha256 in stored.files.items()}
    parts = stored.preprocessing, stored.class_names, stored.about
    return LoadedModel(model.eval(), stored.model, *parts, files=files)


def build_to_fit(config: Any, tensors: Mapping[str, Tensor], *, origin: Path) -> nn.Module:
    """Build the model of some tensors with their values; any other is refused before it takes memory.

    Raises:
        CheckpointError: names or shapes of the tensors differ, or large tables would be computed.
        ConfigError: the settings do not fit together.
    """
    remedy = "Use the weights together with the settings they were saved with"
    with (
        reading(f"the settings beside {origin}", expected="settings of a model", remedy=remedy),
        torch.device("meta"),
        Unfilled(),  # initialising on the meta device takes a second of imports
    ):
        outline = config.build()
    check_same_tensors(state_tensors(outline), tensors, origin=origin)
    num_bytes = sum(buffer.nbytes for buffer in outline.buffers())
    if num_bytes > MOST_COMPUTED_BYTES:
        raise CheckpointError(
            f"the model of {origin} would compute tables of {num_bytes:,} bytes from its settings",
            expected=f"at most {MOST_COMPUTED_BYTES:,}",
            remedy=remedy,
        )
    model: nn.Module = config.build()
    with torch.no_grad():
        for name, target in state_tensors(model).items():
            target.copy_(tensors[name])
    return model


def state_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name; tied tensors once, under their first name."""
    kept = model.state_dict().keys()
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named if name in kept}


def check_same_tensors(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], *, origin: Path) -> None:
    """Check that tensors read from a file have a model's names and shapes.

    Raises:
        CheckpointError: they differ.
    """
    faults = differences(targets, tensors)
    if faults:
        raise CheckpointError(
            f"{origin} holds the weights of another model: {some_of(sorted(faults), len(faults))}",
            expected=f"the {len(targets)} tensors of the model that was built from the settings",
            remedy="Use the weights together with the settings they were saved with",
        )


def differences(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> list[str]:
    """Return which names and shapes of tensors differ from a model's."""
    faults = [f"{name} is missing" for name in targets if name not in tensors]
    faults += [f"{name} is not of this model" for name in tensors if name not in targets]
    return faults + [
        f"{name} is {tuple(tensor.shape)}, not {tuple(targets[name].shape)}"
        for name, tensor in tensors.items()
        if name in targets and tensor.shape != targets[name].shape
    ]


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Serialise tensors as safetensors."""
    return safetensors.torch.save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})


def read_tensors(path: Path, *, sha256: str) -> dict[str, Tensor]:
    """Read a safetensors file and verify its digest.

    Raises:
        CheckpointError: the file is missing, truncated or changed.
    """
    with reading(path, expected="a safetensors file", remedy="Save the model again"):
        return safetensors.torch.load(_read_verified(path, sha256))


def read_description(path: Path, kind: str) -> dict[str, Any]:
    """Read the JSON file that describes a checkpoint; its field ``format`` must be ``kind``.

    Raises:
        CheckpointError: the file is missing, damaged, of another kind or of a later version.
    """
    description = read_sealed(path, remedy="Restore the file, or save the model again")
    if description.get("format") != kind:
        raise CheckpointError(
            f"{path} says it is {description.get('format')!r}",
            expected=f"the format {kind!r}",
            remedy="Name the folder of a vitrail checkpoint",
        )
    check_version(path, description.get("version"), FORMAT_VERSION)
    return description


def check_version(path: Path, version: object, latest: int) -> None:
    """Check that a file is in a form that is known; ``CheckpointError`` otherwise."""
    if not isinstance(version, int) or version > latest:
        raise CheckpointError(
            f"{path} has the format version {version!r}",
            expected=f"a version up to {latest}",
            remedy="Install the version of vitrail that wrote it, or save or export the model again",
        )


def _read_verified(path: Path, sha256: str) -> bytes:
    with reading(path, expected="a file of a checkpoint", remedy="Check the path, or save the model again"):
        content = read_file(path)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise CheckpointError(
            f"{path} ({len(content):,} bytes) is damaged: its content does not match its recorded digest",
            expected=f"content with the sha256 {sha256[:12]}...",
            remedy="Copy the file again from its origin, or train again; the file may be cut off",
        )
    return content
