"""What a CLIP does whatever its towers are: one space, any image size, any image model."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from making.random_weights import randomise
from vitrail.core.errors import DataError
from vitrail.interpret import record_attention
from vitrail.models import build, config_from_settings, model_settings
from vitrail.models.checkpoint import LoadedModel, load_model
from vitrail.models.clip import CLIP
from vitrail.models.contract import ImageTextModel, check_texts

SMALL = {
    "image_size": (24, 32),
    "patch_size": 8,
    "image_width": 12,
    "image_depth": 2,
    "image_num_heads": 3,
    "embedding_dim": 7,
    "vocabulary_size": 11,
    "max_length": 6,
    "begin_id": 1,
    "end_id": 2,
    "text_width": 10,
    "text_depth": 3,
    "text_num_heads": 2,
}
TOWERS = {
    "own": {},
    "vit": {"image_model": "vit_nano", "image_model_settings": {"width": 12, "depth": 1}},
    "resnet": {"image_model": "resnet18", "image_model_settings": {"width": 8, "depths": [1, 1]}},
}
TOKENS = torch.tensor([[1, 5, 6, 2, 0], [1, 9, 2, 0, 0], [1, 4, 4, 4, 2]])
LENGTHS = torch.tensor([4, 3, 5])


@pytest.fixture(params=sorted(TOWERS))
def model(request: pytest.FixtureRequest) -> CLIP:
    return randomise(build("clip_b32", **SMALL, **TOWERS[request.param]))


def test_images_and_texts_become_vectors_of_length_one(model: CLIP) -> None:
    output = model(torch.randn(2, 3, 24, 32), TOKENS, LENGTHS)

    assert output.images.shape == (2, 7)
    assert output.texts.shape == (3, 7)
    for vectors in (output.images, output.texts):
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(len(vectors)))
    assert isinstance(model, ImageTextModel)


def test_images_of_another_size_are_taken(model: CLIP) -> None:
    assert model.embed_images(torch.randn(1, 3, 35, 41)).shape == (1, 7)


def test_a_text_is_read_to_its_end_and_no_further(model: CLIP) -> None:
    other = TOKENS.clone()
    other[1, 3:] = 8
    changed = TOKENS.clone()
    changed[1, 1] = 8

    expected = model.embed_texts(TOKENS, LENGTHS)
    assert torch.equal(model.embed_texts(other, LENGTHS), expected)
    assert not torch.allclose(model.embed_texts(changed, LENGTHS)[1], expected[1])


def test_settings_and_weights_survive_a_folder(model: CLIP, tmp_path) -> None:
    settings = {"name": "clip_b32", **model.config.model_dump(mode="json")}
    again = config_from_settings(json.loads(json.dumps(settings))).build()
    assert again.config == model.config
    arguments = {"preprocessing": {}, "class_names": [], "about": {}}
    LoadedModel(model, model_settings=settings, **arguments).save(tmp_path / "model")
    loaded = load_model(tmp_path / "model").model

    assert torch.equal(loaded.embed_texts(TOKENS, LENGTHS), model.embed_texts(TOKENS, LENGTHS))


def test_attention_of_both_towers_is_recorded() -> None:
    model = randomise(build("clip_b32", **SMALL))
    with record_attention(model) as maps:
        model(torch.randn(2, 3, 24, 32), TOKENS, LENGTHS)

    by_tower = {tower: [each for each in maps if each.layer.startswith(tower)] for tower in ("image", "text")}
    assert {tower: len(found) for tower, found in by_tower.items()} == {"image": 2, "text": 3}
    assert by_tower["image"][0].grid == (3, 4)
    assert by_tower["image"][0].num_prefix == 1
    weights = by_tower["text"][-1].weights
    assert weights.shape == (3, 2, 5, 5)
    assert torch.equal(weights, weights.tril()), "a token looks ahead"


def test_the_scale_starts_at_the_temperature_and_is_kept_below_its_bound() -> None:
    model = build("clip_b32", **SMALL, temperature=0.5, max_scale=3.0)
    assert model.logit_scale.exp().item() == pytest.approx(2.0)
    with torch.no_grad():
        model.logit_scale.fill_(9.0)

    model.train()(torch.randn(2, 3, 24, 32), TOKENS, LENGTHS)

    assert model.logit_scale.exp().item() == pytest.approx(3.0)
    assert model.logit_scale.item() == pytest.approx(math.log(3))


def test_a_scale_beyond_its_bound_is_clamped_in_evaluation_as_well() -> None:
    model = build("clip_b32", **SMALL, max_scale=3.0).eval()
    with torch.no_grad():
        model.logit_scale.fill_(9.0)  # as a last step of training may leave it

    assert model(torch.randn(2, 3, 24, 32), TOKENS, LENGTHS).scale.item() == pytest.approx(3.0)
    assert model.scale.item() == pytest.approx(3.0)
    assert model.logit_scale.item() == 9.0


def test_every_parameter_is_learned(model: CLIP) -> None:
    output = model.train()(torch.randn(3, 3, 24, 32), TOKENS, LENGTHS)
    logits = output.scale * output.images @ output.texts.T
    nn.functional.cross_entropy(logits, torch.arange(3)).backward()

    without = [name for name, each in model.named_parameters() if each.grad is None or not each.grad.any()]
    assert without == []


@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        (TOKENS, torch.tensor([4, 6, 5]), "3 to 6|4 to 6"),
        (TOKENS, torch.tensor([0, 3, 5]), "0 to 5"),
        (torch.ones(1, 7, dtype=torch.int64), torch.tensor([7]), "7 tokens"),
    ],
)
def test_texts_that_do_not_fit_are_refused(tokens, lengths, message: str) -> None:
    model = build("clip_b32", **SMALL)
    with pytest.raises(DataError, match=message):
        model.embed_texts(tokens, lengths)


def test_texts_without_a_length_each_are_refused() -> None:
    with pytest.raises(DataError, match="one length for each text"):
        check_texts(TOKENS, LENGTHS[:2])


def test_the_small_one_of_ours_has_an_image_model_of_ours() -> None:
    settings = model_settings("clip_tiny")
    assert settings["image_model"] == "vit_micro"
    model = config_from_settings(settings).build()
    assert model.embed_images(torch.randn(1, 3, 64, 64)).shape == (1, settings["embedding_dim"])
