from __future__ import annotations

import pytest
import torch
from torch import nn

from making.small_models import MEAN, MLP_MIXER, SWIN, VIT
from vitrail.core.errors import ConfigError
from vitrail.interpret import record_attention
from vitrail.interpret.relevance import class_relevance
from vitrail.models import build
from vitrail.models.merged import merge_tokens, merging_counts


def _model(name: str = "vit_ti16", **changes: object) -> nn.Module:
    torch.manual_seed(1)
    model = build(name, **{**VIT, "depth": 3, **changes}).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


IMAGES = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(4))


def test_merging_nothing_returns_the_model_itself():
    model = _model()
    assert merge_tokens(model, 0) is model


@pytest.mark.parametrize("changes", [{}, MEAN, {"pool": "flatten"}], ids=["class", "mean", "flatten"])
def test_alike_tokens_merge_without_a_trace(changes):
    """An image of one colour has equal patches where there are no positions: merging them changes nothing."""
    model = _model(**changes, positions="none")
    images = torch.ones(2, 3, 16, 24) * torch.tensor([0.5, -1.0])[:, None, None, None]

    torch.testing.assert_close(merge_tokens(model, 5)(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["vit_ti16", "deit_ti16_distilled"])
@pytest.mark.parametrize("schedule", ["constant", "decreasing"])
def test_tokens_grow_fewer_and_all_places_are_answered_for(name, schedule):
    model = _model(name)
    merging = merge_tokens(model, 4, schedule=schedule)
    seen = []
    for block in merging.blocks:
        block.mlp.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[1]))

    logits = merging(IMAGES)

    prefix = model.num_prefix
    expected = {"constant": [20, 16, 12], "decreasing": [16, 12, 12]}[schedule]
    assert seen == [prefix + patches for patches in expected]
    assert logits.shape == (2, 5)
    assert not torch.allclose(logits, model(IMAGES), atol=1e-3)
    assert merging.tokens(IMAGES).shape == model.tokens(IMAGES).shape
    assert merging.features(IMAGES)[0].shape == (2, 12, 4, 6)
    torch.testing.assert_close(merging(IMAGES[:1]), logits[:1], rtol=1e-4, atol=1e-5)


def test_a_merging_model_has_the_weights_and_names_of_its_model():
    model = _model()
    merging = merge_tokens(model, 2)
    assert list(merging.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(merging.parameters(), model.parameters(), strict=True))
    assert not merging.training


def test_maps_of_a_merging_model_are_of_all_patches():
    merging = merge_tokens(_model(), 6)
    plain = merging(IMAGES)
    with record_attention(merging) as maps:
        recorded = merging(IMAGES)

    torch.testing.assert_close(recorded, plain, rtol=1e-4, atol=1e-5)
    assert [each.layer for each in maps] == ["blocks.0.mixer", "blocks.1.mixer", "blocks.2.mixer"]
    assert {(each.grid, each.query_grid, each.weights.shape[-1]) for each in maps} == {((4, 6), (4, 6), 25)}


@pytest.mark.parametrize("changes", [{}, MEAN], ids=["class", "mean"])
def test_relevance_follows_merged_tokens_to_all_their_patches(changes):
    model = _model(**changes)
    labels = torch.tensor([1, 3])
    exact = class_relevance(merge_tokens(model, 1), IMAGES, labels)
    coarse = class_relevance(merge_tokens(model, 8), IMAGES, labels)

    assert exact.shape == coarse.shape == (2, 4, 6)
    assert (coarse > 0).float().mean() > 0.9  # no patch is lost with the tokens that vanish


def test_a_decreasing_schedule_merges_as_many_in_all():
    assert merging_counts(12, 8, "decreasing") == (16, 15, 13, 12, 10, 9, 7, 6, 4, 3, 1, 0)
    assert sum(merging_counts(12, 8, "decreasing")) == sum(merging_counts(12, 8, "constant"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (("swin_t", SWIN), "of the family swin"),
        (("mixer_s16", MLP_MIXER), "mixes tokens by|of the family"),
        (("vit_ti16", {**VIT, "positions": "rotary", "num_heads": 3}), "has positions"),
        (("vit_ti16", {**VIT, "norm_place": "post"}), "norm_place 'post'"),
        (("vit_ti16", {**VIT, "mixer": "fourier"}), "which has no keys"),
    ],
)
def test_a_model_that_cannot_merge_says_why(model, message):
    name, changes = model
    with pytest.raises(ConfigError, match=message):
        merge_tokens(build(name, **changes), 2)


def test_bad_numbers_and_schedules_are_refused():
    model = _model()
    with pytest.raises(ConfigError, match="-1 tokens"):
        merge_tokens(model, -1)
    with pytest.raises(ConfigError, match="no schedule named 'rising'"):
        merge_tokens(model, 1, schedule="rising")
    with pytest.raises(ConfigError, match="merges tokens already"):
        merge_tokens(merge_tokens(model, 1), 1)
