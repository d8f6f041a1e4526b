"""Published models as folders of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import CheckpointError
from vitrail.models.checkpoint import MODEL_FILE, LoadedModel, load_model, save_model
from vitrail.models.contract import (
    DetectionModelConfig,
    DetectionOutput,
    ImageTextModelConfig,
    ImageTextOutput,
    TranslationModelConfig,
)
from vitrail.models.weights.published import load_published

SENTENCE_TOKENS = 9  # of the sentence that both models read


def convert_to_folder(source: str, folder: Path, *, model: str | None = None) -> Iterator[str]:
    """Write a published model as a folder of ours, read it again and say in lines what was written.

    Args:
        source: as for ``load_published``.
        folder: is created; a saved model in it is replaced as a whole when everything is written.
        model: as for ``load_published``.

    Raises:
        ConfigError: as ``load_published``.
        CheckpointError: as ``load_published``; the folder holds anything but a model; the disk is full or not
            writable; or the folder's model gives other outputs than the converted one.
    """
    _check_replaceable(folder)
    loaded = load_published(source, model=model)
    save_model(
        folder,
        loaded.model,
        model_settings=loaded.model_settings,
        preprocessing=loaded.preprocessing,
        class_names=loaded.class_names,
        about=loaded.about,
        files=loaded.files,
    )
    again = load_model(folder)
    inputs = _draw_inputs(loaded)
    with torch.inference_mode():
        if not _are_equal(again.model(*inputs), loaded.model(*inputs)):
            raise CheckpointError(
                f"the model read from {folder} gives other outputs than the one written there",
                expected="the same outputs",
                remedy="Check the disk, and convert again",
            )
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    yield f"{loaded.model_settings['name']}: {parameters:,} parameters, {_outputs(loaded)}"
    yield _preparation(loaded.preprocessing)
    yield f"every tensor was used once, and the folder gives the same outputs: {folder}"


def _draw_inputs(loaded: LoadedModel) -> tuple[Tensor, ...]:
    """Return random inputs of a model: an image, or a sentence, its length and a translation."""
    config = loaded.model.config
    if isinstance(config, DetectionModelConfig):
        return (torch.randn(1, 3, *config.image_size),)
    if isinstance(config, ImageTextModelConfig):
        tokens = torch.randint(config.vocabulary_size, (1, min(SENTENCE_TOKENS, config.max_length)))
        return torch.randn(1, 3, *config.image_size), tokens, torch.tensor([tokens.shape[1]])
    if not isinstance(config, TranslationModelConfig):
        return (torch.randn(1, loaded.model_settings["num_channels"], *loaded.preprocessing["image_size"]),)
    source = torch.randint(config.source_vocabulary_size, (1, SENTENCE_TOKENS))
    target = torch.randint(config.target_vocabulary_size, (1, SENTENCE_TOKENS))
    return source, torch.tensor([SENTENCE_TOKENS]), target


def _are_equal(
    output: Tensor | DetectionOutput | ImageTextOutput,
    expected: Tensor | DetectionOutput | ImageTextOutput,
) -> bool:
    if isinstance(output, ImageTextOutput) and isinstance(expected, ImageTextOutput):
        return all(torch.equal(one, other) for one, other in zip(output, expected, strict=True))
    if isinstance(output, DetectionOutput) and isinstance(expected, DetectionOutput):
        return torch.equal(output.logits, expected.logits) and torch.equal(output.boxes, expected.boxes)
    assert isinstance(output, Tensor)
    assert isinstance(expected, Tensor)
    return torch.equal(output, expected)


def _outputs(loaded: LoadedModel) -> str:
    config = loaded.model.config
    if isinstance(config, TranslationModelConfig):
        return f"{config.target_vocabulary_size:,} subwords"
    if isinstance(config, ImageTextModelConfig):
        return f"embeddings of {config.embedding_dim} values, {config.vocabulary_size:,} subwords"
    return f"{len(loaded.class_names)} classes"


def _preparation(preprocessing: Mapping[str, Any]) -> str:
    if preprocessing.get("task") == "translation":
        return "sentences: {} to {}".format(*preprocessing["languages"])
    size = "x".join(map(str, preprocessing["image_size"]))
    return f"images: {size}, {preprocessing['resize']}, {preprocessing['interpolation']}"


def _check_replaceable(folder: Path) -> None:
    """Refuse to replace what is no saved model: replacing a folder removes all that is in it."""
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_free and not (folder / MODEL_FILE).is_file():
        raise CheckpointError(
            f"{folder} exists, and is no saved model",
            expected="a folder that does not exist yet, is empty, or holds a saved model",
            remedy="Name another folder, such as models/NAME",
        )
