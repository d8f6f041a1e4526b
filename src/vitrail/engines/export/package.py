"""Packages: folders with an exported model and all that its use takes, verified when read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator

from vitrail.core.config import MOST_PIXELS, Config, PlainName
from vitrail.core.durable import find_folder, read_folder, write_durably
from vitrail.core.errors import CheckpointError, reading
from vitrail.core.files import open_file
from vitrail.core.sealed import read_sealed, sealed
from vitrail.models.checkpoint import LoadedModel, check_version, state_tensors
from vitrail.nn.token_merging import TokenMergingBlock

PACKAGE_FILE = "package.json"
PACKAGE_VERSION = 1

PORTS = (("images", "logits"), ("images", "sizes", "logits", "boxes"))
MOST_PADDED = 2048  # pixels that an image is padded to

Format = Literal["onnx", "openvino", "torch"]
Precision = Literal["float32", "bfloat16", "int8"]

MODEL_FILES: Mapping[str, tuple[str, ...]] = {
    "onnx": ("model.onnx",),
    "openvino": ("model.xml", "model.bin"),
    "torch": ("model.pt2",),
}
"""The files of each format, the engine's entry file first."""


class PortSpec(Config):
    """One input or output of an exported model."""

    name: str
    """``images`` or ``sizes``; ``logits`` or ``boxes``."""
    dtype: Literal["float32", "int64"]
    """Data type, whatever the precision inside."""
    axes: tuple[int | str, ...]
    """Length of each axis; a name such as ``batch`` if it is free."""
    multiple_of: int = Field(default=1, ge=1, le=MOST_PADDED)
    """What free heights and widths must be a multiple of."""
    at_least: int = Field(default=1, ge=1, le=MOST_PADDED)
    """The minimum of free heights and widths."""

    @field_validator("axes")
    @classmethod
    def _check_axes(cls, axes: tuple[int | str, ...]) -> tuple[int | str, ...]:
        lengths = [axis for axis in axes if isinstance(axis, int)]
        if min(lengths, default=1) < 1 or math.prod(lengths) > 3 * MOST_PIXELS:
            raise ValueError(f"axes {list(axes)} are empty or too long")
        return axes


class ScorePair(Config):
    """One score of the model and of its export, on the same samples."""

    model: float
    """Of the torch model in float32."""
    export: float
    """Of the export."""


class Comparison(Config):
    """Results of running the model and its export on the same images."""

    images: str
    """The images: a split of a data set, or generated ones."""
    num_images: int
    """Number of compared images."""
    largest_logit_difference: float
    """Maximum over all logits."""
    mean_logit_difference: float
    """Mean over all logits."""
    largest_logit: float = 0.0
    """Largest absolute logit of the torch model; the tolerance grows with it."""
    top1_agreement: float
    """Fraction of images, or of a detector's boxes that matter, with the same predicted class."""
    largest_box_difference: float | None = None
    """Detectors only: maximum over coordinates of matched boxes, relative to the image."""
    mean_box_difference: float | None = None
    """Detectors only: mean over coordinates."""
    scores: dict[str, ScorePair] = Field(default_factory=dict)
    """Scores of both, by name, if there were labels."""
    num_scored: int = 0
    """Number of scored samples."""


class Package(Config):
    """The content of ``package.json``; fields shared with saved models have the same names."""

    package_version: int = Field(default=PACKAGE_VERSION, ge=1, le=PACKAGE_VERSION)
    """Version of this format."""
    task: Literal["classification", "detection"]
    """A classifier of images, or a detector."""
    format: Format
    """The file format."""
    precision: Precision
    """Of the matrix products."""
    model_settings: dict[str, Any]
    """The name of the variant and every field of its config."""
    preprocessing: dict[str, Any]
    """The fields of ``Preprocessing`` or of ``BoxPreprocessing``."""
    class_names: tuple[str, ...]
    """In label order."""
    about: dict[str, Any]
    """Origin of the model; of a detector with its ``class_ids``."""
    inputs: tuple[PortSpec, ...]
    """In the model's order."""
    outputs: tuple[PortSpec, ...]
    """In the model's order."""
    comparison: Comparison
    """Comparison with the torch model."""
    tolerance: float
    """Tolerance of logits: of the maximum difference in float32, of the mean in others."""
    box_tolerance: float | None = None
    """Detectors only: the same for box coordinates, relative to the image."""
    weights: str = ""
    """Digest of the torch model; empty in older packages."""
    files: dict[PlainName, str]
    """The sha256 of each file of the model; ONNX weights of more than two GiB are a separate file."""
    folder: Path = Field(default=Path(), exclude=True)
    """Where the package is; not written."""

    @model_validator(mode="after")
    def _check_classes(self) -> Self:
        ports, num_classes = (*self.inputs, *self.outputs), len(self.class_names)
        names = tuple(port.name for port in ports)
        if names not in PORTS or len(ports[0].axes) != 4:
            raise ValueError("inputs and outputs are not images, sizes, logits, boxes, or images, logits")
        if self.outputs[0].axes[-1:] not in ((num_classes,), (num_classes + len(names) // 4,)):  # "no object"
            raise ValueError(f"there are {num_classes} class_names for logits of {self.outputs[0].axes}")
        return self

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Read a package and verify its files.

        Raises:
            CheckpointError: the folder holds no package, or a file is missing or altered.
        """
        package = read_folder(Path(folder), cls._read)
        return package.model_copy(update={"folder": Path(folder)})

    @classmethod
    def _read(cls, folder: Path) -> Self:
        path, expected = folder / PACKAGE_FILE, f"a folder that vitrail export wrote, with {PACKAGE_FILE}"
        tree = read_sealed(path, expected=expected, remedy="Name the folder of an exported model")
        check_version(path, tree.get("package_version"), PACKAGE_VERSION)
        remedy = "Export the model again, with this version of vitrail"
        package = cls.from_file(path, tree, remedy=remedy)
        needed = MODEL_FILES[package.format]
        if not set(needed) <= set(package.files):
            raise CheckpointError(
                f"{path} names the files {', '.join(sorted(package.files)) or 'none'}",
                expected=f"{', '.join(needed)} for the format {package.format}, beside it",
                remedy="Export the model again",
            )
        for name, sha256 in package.files.items():
            if _digest(folder / name) != sha256:
                raise CheckpointError(
                    f"{folder / name} is damaged: its content does not match its recorded digest",
                    expected=f"content with the sha256 {sha256[:12]}...",
                    remedy="Copy the package again from its origin, or export the model again",
                )
        return package

    def write(self, folder: Path) -> None:
        """Write ``package.json`` beside the files of the model.

        Raises:
            OSError: the disk is full or not writable.
        """
        write_durably(folder / PACKAGE_FILE, sealed(self.model_dump(mode="json")))


def is_package(folder: str | Path) -> bool:
    """Return whether a folder claims to hold an exported model; ``Package.read`` verifies it."""
    return (find_folder(Path(folder)) / PACKAGE_FILE).is_file()


def digest_files(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file in a folder."""
    return {path.name: _digest(path) for path in sorted(folder.iterdir()) if path.name != PACKAGE_FILE}


def _digest(path: Path) -> str:
    remedy = "Copy the package again from its origin, or export the model again"
    with reading(path, expected="every file of the package", remedy=remedy), open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


NUM_VALUES = 64  # per tensor, evenly spaced


def digest_model(loaded: LoadedModel) -> str:
    """Return a digest of a model's settings, tensor shapes and some values of each tensor.

    Hashing all values of a large model takes longer than its first prediction; an optimiser step changes all
    of them. Token merging is included, as it changes outputs without changing tensors.
    """
    model = loaded.model
    counts = [block.num_merged for block in model.modules() if isinstance(block, TokenMergingBlock)]
    about = f"{type(model).__qualname__} {getattr(model, 'config', None)!r} {counts}"
    digest = hashlib.sha256(about.encode())
    for name, tensor in state_tensors(model).items():
        flat = tensor.flatten()
        some = flat[:: max(len(flat) // NUM_VALUES, 1)].to("cpu", torch.float64).numpy().tobytes()
        digest.update(f"{name} {tuple(tensor.shape)}".encode() + some)
    return digest.hexdigest()
