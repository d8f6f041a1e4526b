from __future__ import annotations

import pytest

import vitrail
from vitrail.core.errors import ConfigError
from vitrail.models import MODELS, list_models
from vitrail.models.contract import ImageModelConfig
from vitrail.models.describe import describe, list_cards, parse_size, published_weights

FAMILIES = sorted({config.family for config in MODELS.values()})


def smallest_of(family: str) -> str:
    order = {"nano": 0, "ti16": 1, "b0": 1, "t": 1, "s": 2, "s16": 2, "18": 0, "resnet18": 0}
    names = [name for name in list_models() if MODELS[name].family == family]
    if not isinstance(MODELS[names[0]], ImageModelConfig):
        return min(names, key=lambda name: (not name.endswith("_tiny"), name))
    return min(names, key=lambda name: (order.get(name.split("_")[-1], 3), name))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parts_of_a_card_make_up_the_model(family):
    card = describe(smallest_of(family))
    for total in ("parameters", "macs", "activations"):
        assert sum(getattr(part, total) for part in card.parts) == getattr(card, total) > 0
    assert any(part.grid for part in card.parts) == isinstance(MODELS[card.name], ImageModelConfig)
    assert card.weight_bytes == 4 * card.parameters < card.peak_bytes
    assert type(card).from_tree(card.model_dump(mode="json")) == card


@pytest.mark.parametrize(
    ("name", "gmacs", "million_activations"),
    # timm's list of results on ImageNet; it leaves a fused attention's result out of ViT's activations, and
    # has the products of Swin's explicit one, weights and all, among them
    [("resnet50", 4.11, 11.11), ("efficientnet_b0", 0.40, 6.75), ("resnet18", 1.82, 2.48)],
)
def test_costs_are_the_published_ones(name, gmacs, million_activations):
    card = describe(name)
    assert card.macs / 1e9 == pytest.approx(gmacs, abs=0.025)
    assert card.activations / 1e6 == pytest.approx(million_activations, abs=0.01)


def test_the_costs_of_a_vit_are_those_of_its_formula():
    card = describe("vit_s32", size=(64, 96))  # 2 x 3 patches and a class token, 384 wide, 12 deep
    tokens, dim = 7, 384
    block = tokens * dim * dim * (3 + 1 + 4 + 4) + 2 * tokens * tokens * dim
    assert card.macs == 6 * 3 * 32 * 32 * dim + 12 * block + dim * 1000
    assert card.activations == 6 * dim + 12 * tokens * dim * (3 + 1 + 1 + 4 + 1) + 1000
    assert [(layer.queries, layer.keys) for layer in card.attention] == [(7, 7)] * 12


def test_the_costs_of_a_transformer_are_those_of_its_formula():
    card = describe("transformer_tiny", size=(7, 5))  # subwords read and written; 128 wide, 256 hidden, 4 + 4
    dim, hidden = 128, 256
    encoder = 7 * (4 * dim * dim + 2 * dim * hidden) + 2 * 7 * 7 * dim
    decoder = 5 * (6 * dim * dim + 2 * dim * hidden) + 7 * 2 * dim * dim + 2 * 5 * (5 + 7) * dim
    assert card.macs == 4 * encoder + 4 * decoder + 5 * dim * 10_000
    assert {part.name: part.parameters for part in card.parts}["target_embedding"] == 10_000 * dim
    sizes = [(layer.queries, layer.keys, layer.global_elements) for layer in card.attention]
    assert sizes == [(7, 7, 49)] * 4 + [(5, 5, 25), (5, 7, 35)] * 4
    assert card.num_tokens == (7, 5)


def test_the_card_of_a_detector_says_what_it_answers():
    card = describe("detr_r50", size=(800, 1066))  # a map of 25 x 34 patches
    sizes = [(layer.queries, layer.keys) for layer in card.attention]
    assert sizes == [(850, 850)] * 6 + [(100, 100), (100, 850)] * 6
    assert (card.num_classes, card.num_queries, card.image_size) == (91, 100, (800, 1066))
    # Carion et al. 2020, table 1: 86 GFLOPs, of multiplications with their additions, at such sizes
    assert 80e9 < card.macs < 90e9
    assert {part.name: part.parameters for part in card.parts}["class_head"] == 257 * 92


def test_windows_reduce_the_lectures_attention():
    layer = describe("swin_t").attention[0]
    assert layer.global_elements == (56 * 56) ** 2 == 9_834_496
    assert layer.elements == 64 * 49**2 == 153_664


def test_reduced_keys_and_pooled_queries_are_counted_as_computed():
    reduced = describe("pvt_t").attention[0]
    assert (reduced.queries, reduced.keys) == (56 * 56, 49)
    assert reduced.global_elements == (56 * 56) ** 2
    assert all(layer.elements <= layer.global_elements for layer in describe("mvitv2_t").attention)


def test_a_larger_image_costs_more_and_has_the_same_parameters():
    native, larger = describe("swin_t"), describe("swin_t", size=(250, 331))
    assert larger.parameters == native.parameters
    assert larger.macs > native.macs
    assert larger.peak_bytes > native.peak_bytes
    assert larger.image_size == (250, 331)
    assert next(part.grid for part in larger.parts if part.grid) == (63, 83)


def test_models_without_attention_say_so():
    assert describe("resnet18").attention == ()


def test_pixels_as_tokens_are_counted():
    """An image of N x N pixels has N^2 tokens and N^4 elements in each matrix, the class token aside."""
    card = describe("vit_s16", changes={"patch_size": 1, "class_token": False, "pool": "mean"})
    assert card.attention[0].elements == 224**4
    assert card.weights == {}
    assert describe("vit_s16", changes={}).weights


def test_free_heads_are_counted():
    card = describe("vit_s16", changes={"head_dim": 16, "value_dim": 128})
    plain = describe("vit_s16")
    dim, heads = 384, 6
    more = heads * (2 * (16 - 64) + 2 * (128 - 64)) * dim + heads * (2 * (16 - 64) + (128 - 64))
    assert card.parameters - plain.parameters == 12 * more


def test_weights_are_those_of_the_key_tables():
    assert "vit_small_patch16_224" in published_weights("vit_s16")["timm"]
    assert published_weights("vit_nano") == {}


def test_the_card_of_a_transformer_names_the_marian_models_that_become_one():
    assert published_weights("transformer_base") == {"hf": ("Helsinki-NLP/opus-mt-SOURCE-TARGET",)}
    assert describe("transformer_base", size=7).weights == published_weights("transformer_base")
    assert published_weights("rnn") == {}


def test_every_model_is_listed_once_with_its_count():
    listed = list(list_cards())
    assert sorted(card["name"] for card in listed) == list_models()
    cards = {card["name"]: card for card in listed}
    assert (cards["vit_b16"]["parameters"], cards["vit_b16"]["image_size"]) == (86_567_656, [224, 224])
    assert cards["transformer_base"]["source_vocabulary_size"] == 37_000


def test_what_cannot_be_described_is_refused():
    with pytest.raises(ConfigError, match="Did you mean 'swin_t'"):
        describe("swin_tt")
    with pytest.raises(ConfigError, match="at least 16x16"):
        describe("vit_s16", size=(224, 15))
    for text in ("", "0", "224,224", "224x", "x224", "-3", "2.5"):
        with pytest.raises(ConfigError, match="384x512"):
            parse_size(text)


def test_sizes_are_read():
    assert parse_size("384") == (384, 384)
    assert parse_size(" 384x512") == (384, 512)


def test_the_package_describes():
    assert vitrail.describe is describe
