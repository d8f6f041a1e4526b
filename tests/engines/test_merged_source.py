from __future__ import annotations

import numpy as np
import pytest
import torch

from making.small_models import SWIN, VIT
from vitrail.core.errors import ConfigError
from vitrail.data.preprocessing import Preprocessing
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.merged import MergedViT
from vitrail.tasks.classification.predictor import Predictor

NAMES = ["a", "b", "c", "d", "e"]


def _loaded(name: str, changes: dict) -> LoadedModel:
    torch.manual_seed(3)
    preprocessing = Preprocessing(image_size=(16, 24)).model_dump(mode="json")
    return LoadedModel(build(name, **changes), model_settings(name, **changes), preprocessing, NAMES, {})


def test_a_predictor_merges_tokens_and_explains_over_all_patches():
    loaded = _loaded("vit_b16", VIT)
    image = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    merging, plain = Predictor(loaded, merge_tokens=5), Predictor(loaded)

    assert isinstance(merging.model, MergedViT)
    assert not isinstance(plain.model, MergedViT)
    first, second = merging.predict(image)[0], plain.predict(image)[0]
    assert dict(first.scores) != dict(second.scores)
    shown = merging.explain(image)
    assert shown.has_rollout
    assert shown.relevance("relevance").shape == shown.relevance("rollout").shape == (4, 6)


def test_a_model_that_cannot_merge_is_refused():
    with pytest.raises(ConfigError, match="of the family swin"):
        Predictor(_loaded("swin_t", SWIN), merge_tokens=5)
