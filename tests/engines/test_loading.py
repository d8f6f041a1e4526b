from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from making.small_exports import load_small, save_loaded, small_vit, write_package
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.engines.export.package import Package
from vitrail.engines.loading import ModelInTorch, load_any, load_once, load_start, open_source
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.merged import MergedViT
from vitrail.tasks.classification.predictor import Predictor

CPU = torch.device("cpu")


def test_a_folder_is_a_model_or_a_package(tmp_path: Path) -> None:
    save_loaded(tmp_path / "model", small_vit())
    write_package(tmp_path / "package", small_vit(), "onnx")

    assert isinstance(open_source(tmp_path / "model"), LoadedModel)
    opened = open_source(tmp_path / "package")
    assert isinstance(opened, Package)
    assert open_source(opened) is opened
    with pytest.raises(ConfigError, match="exported from"):
        ModelInTorch(opened, CPU).get()


def test_a_model_is_read_again_for_explanations_unless_it_was_given(tmp_path: Path) -> None:
    loaded = save_loaded(tmp_path / "model", small_vit())
    in_torch = ModelInTorch(tmp_path / "model", CPU)

    model = in_torch.get()

    assert in_torch.get() is model
    assert not model.training
    pairs = zip(model.parameters(), loaded.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert ModelInTorch(loaded, CPU).get() is loaded.model


def test_what_a_training_starts_from_is_read_once(tmp_path: Path) -> None:
    save_loaded(tmp_path / "model", small_vit())
    source = str(tmp_path / "model")

    first = load_start(source, None, task="classification")

    assert load_start(source, "vit_nano", task="classification") is first
    load_once.cache_clear()
    assert load_start(source, None, task="classification") is not first


def test_a_predictor_merges_tokens_and_explains_over_all_patches() -> None:
    loaded = load_small("vit_b16")
    image = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    merging, plain = Predictor(loaded, merge_tokens=5), Predictor(loaded)

    assert isinstance(merging.model, MergedViT)
    assert not isinstance(plain.model, MergedViT)
    first, second = merging.predict(image)[0], plain.predict(image)[0]
    assert dict(first.scores) != dict(second.scores)
    shown = merging.explain(image)
    assert shown.has_rollout
    assert shown.relevance("relevance").shape == shown.relevance("rollout").shape == (4, 6)


def test_a_model_that_cannot_merge_is_refused() -> None:
    with pytest.raises(ConfigError, match="of the family swin"):
        Predictor(load_small("swin_t"), merge_tokens=5)


def test_an_export_is_told_from_a_folder_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"holds a model that was exported\. .*predict reads the export"
    ):
        load_any(tmp_path)


def test_data_named_as_a_model_is_told_the_order(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()

    with pytest.raises(
        CheckpointError, match=r"holds no model\. .* The model comes first, then data or files"
    ):
        load_any(tmp_path)
