"""Convert state dicts of other libraries to our names and back, by source and family."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import CheckpointError, check_name
from vitrail.models import MODELS
from vitrail.models.checkpoint import differences
from vitrail.models.contract import DetectionModelConfig, ImageModelConfig, ModelConfig
from vitrail.models.weights.layouts import authors, hf, timm, torchvision
from vitrail.models.weights.table import Entry, Source, State, to_ours, to_theirs
from vitrail.nn.feature_maps import coarser_grid

HEADS = ("head.", "class_head.")
POSITIONS = ("positions.table", "stages.0.positions.table")  # of an image's first grid
NUM_PREFIX = (0, 1, 2)  # tokens before a grid; no two squares are so close, but 0 and 1
MAX_LISTED = 8
SOURCES = {
    source.name: source
    for source in (
        timm.SOURCE,
        hf.SOURCE,
        torchvision.SOURCE,
        authors.JAX,
        authors.DETR,
        authors.SLOWFAST,
        authors.OPENAI,
        authors.OPEN_CLIP,
    )
}


def convert(state_dict: Mapping[str, Tensor], *, source: str, model: str, **changes: Any) -> State:
    """Convert another library's state dict to the names and shapes of our model.

    The number of classes is read off the head's weights, and the image size off the learned position
    embeddings. Every tensor of either side must match, or nothing is converted.

    Args:
        state_dict: as the other library's model returns it.
        source: ``timm``, ``hf`` (transformers), ``torchvision``, ``jax`` (the authors' ``.npz`` files),
            ``detr`` (the authors' ``.pth`` files), ``slowfast`` (MViT's), ``openai`` (CLIP's) or
            ``open_clip``.
        model: the name of our model.
        changes: settings that differ from the named model's.

    Raises:
        ConfigError: there is no such source or model, or the source has none of the model's family.
        CheckpointError: tensors are missing, unexpected or of other shapes; all are listed.

    Example:
        >>> from vitrail.models import build
        >>> from vitrail.models.weights.conversion import export
        >>> theirs = export(build("vit_ti16").state_dict(), source="timm", config=build("vit_ti16").config)
        >>> sorted(convert(theirs, source="timm", model="vit_ti16"))[0]
        'blocks.0.mixer.projection.bias'
    """
    config = MODELS[model].with_changes(changes)
    return convert_to(state_dict, source=source, config=fit_config(state_dict, source=source, config=config))


def convert_to(state_dict: Mapping[str, Tensor], *, source: str, config: ModelConfig) -> State:
    """Convert to the names and shapes of the model of exactly these settings.

    Raises:
        ConfigError: as ``convert``.
        CheckpointError: as ``convert``.
    """
    chosen = find_source(source)
    table = _choose_table(chosen, state_dict, config)
    state = to_ours(table, state_dict, ignored=chosen.ignored.get(config.family, ()))
    with torch.device("meta"):
        expected = config.build().state_dict()
    _check_shapes(state, expected, config)
    return {name: tensor.to(expected[name].dtype) for name, tensor in state.items()}


def export(state_dict: Mapping[str, Tensor], *, source: str, config: ModelConfig) -> State:
    """Convert our tensors to another library's names and shapes: the reverse of ``convert_to``.

    Raises:
        ConfigError: as ``convert``.
        CheckpointError: as ``convert``.
    """
    return to_theirs(find_source(source).table(config), state_dict)


def fit_config(state_dict: Mapping[str, Tensor], *, source: str, config: ModelConfig) -> ModelConfig:
    """Return the settings with the number of classes and the image size that tensors of the weights show.

    A square image is assumed where the position embeddings are not those of the settings' image size.

    Raises:
        ConfigError: as ``convert``.
    """
    changes: dict[str, Any] = {}
    for entry in find_source(source).table(config):
        if len(entry.ours) != 1 or len(entry.theirs) != 1 or entry.theirs[0] not in state_dict:
            continue
        name, theirs = entry.ours[0], state_dict[entry.theirs[0]]
        if name.startswith(HEADS) and name.endswith("bias"):
            has_no_object = isinstance(config, DetectionModelConfig) and config.scoring == "softmax"
            changes.setdefault("num_classes", theirs.numel() - int(has_no_object))
        elif name in POSITIONS and isinstance(config, ImageModelConfig) and theirs.ndim == 3:  # 1 n d
            patch_size: int = config.patch_size  # type: ignore[attr-defined]
            num_tokens = theirs.shape[1]
            side = math.isqrt(num_tokens)
            made_for = math.prod(coarser_grid(config.image_size, patch_size))
            if num_tokens - made_for not in NUM_PREFIX and num_tokens - side**2 in NUM_PREFIX:
                changes["image_size"] = (side * patch_size, side * patch_size)
    return config.with_changes(changes) if changes else config


def find_source(name: str) -> Source:
    """Return a source by name, or raise ConfigError."""
    check_name("source of weights", name, SOURCES)
    return SOURCES[name]


def rename(state: Mapping[str, Tensor], renamed: Sequence[tuple[str, str]]) -> State:
    """Rename the tensors of a file as its library's models name them today, by patterns and replacements.

    The key tables use the new names, which are kept; files keep the old ones, for older releases.
    """
    result = {}
    for name, tensor in state.items():
        for pattern, replacement in renamed:
            name = re.sub(pattern, replacement, name)  # noqa: PLW2901
        result[name] = tensor
    return result


def _choose_table(source: Source, state_dict: Mapping[str, Tensor], config: ModelConfig) -> list[Entry]:
    """Return the table of the layout that matches most names."""
    tables = [source.table(config)]
    if config.family in source.other_tables:
        tables.append(list(source.other_tables[config.family](config)))
    return max(tables, key=lambda table: sum(name in state_dict for entry in table for name in entry.theirs))


def _check_shapes(state: State, expected: Mapping[str, Tensor], config: ModelConfig) -> None:
    faults = differences(expected, state)
    if faults:
        more = f"; and {len(faults) - MAX_LISTED} more" if len(faults) > MAX_LISTED else ""
        raise CheckpointError(
            f"the weights do not fit the {config.family} model: {'; '.join(faults[:MAX_LISTED])}{more}",
            expected="weights of the same architecture and size",
            remedy="Name the model that these weights belong to, and its settings such as image_size",
        )
