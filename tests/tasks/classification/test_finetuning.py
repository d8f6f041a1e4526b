from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.engines.loading import load_any
from vitrail.models import build
from vitrail.models.weights.transfer import copy_pretrained
from vitrail.tasks.training import train

STEPS = {"train.steps": 3, "train.validations": 0}
SMALL = {"model.width": 12, "model.depth": 1, "model.num_heads": 3, "model.patch_size": 4}


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    """A run on digits, with ten classes at 8x8 pixels."""
    changes = {**STEPS, **SMALL}
    return train("digits", model="vit_ti16", changes=changes, output=tmp_path, name="first").folder


def test_another_head_starts_from_the_weights_at_a_higher_resolution(tmp_path, pretrained, image_folder):
    changes = {**STEPS, "data.image_size": [24, 24], "optim.learning_rate": 1e-9}
    second = train(image_folder, weights=pretrained, changes=changes, output=tmp_path, name="second").folder

    before, after = load_any(pretrained), load_any(second)
    assert after.model_settings["num_classes"] == 3
    assert after.model_settings["image_size"] == [8, 8]  # the grid of the learned positions
    assert after.preprocessing["image_size"] == [24, 24]
    assert after.preprocessing["mean"] == before.preprocessing["mean"]
    learned, kept = before.model.state_dict(), after.model.state_dict()
    for name in learned:
        if not name.startswith("head"):
            torch.testing.assert_close(kept[name], learned[name], rtol=0, atol=1e-6)


def test_a_model_other_than_the_weights_is_refused(tmp_path, pretrained, image_folder):
    with pytest.raises(ConfigError, match="Leave out --model"):
        train(image_folder, model="vit_s16", weights=pretrained, changes=STEPS, output=tmp_path)
    with pytest.raises(CheckpointError, match=r"differ from the model in blocks"):
        train(image_folder, weights=pretrained, changes={**STEPS, "model.width": 24}, output=tmp_path)


def test_all_or_nothing_is_copied():
    tiny = {"width": 12, "depth": 1, "num_heads": 3, "patch_size": 4, "image_size": (8, 8)}
    model, other = build("vit_ti16", **tiny), build("vit_ti16", **{**tiny, "mlp_ratio": 2.0})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError):
        copy_pretrained(model, other)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    same = build("vit_ti16", **tiny, num_classes=7)
    assert copy_pretrained(model, same) == ["head.weight", "head.bias"]
    assert torch.equal(model.state_dict()["prefix"], same.state_dict()["prefix"])
