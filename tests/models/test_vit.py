from __future__ import annotations

from typing import get_args

import pytest
import torch
import transformers
from torch import nn

from vitrail.interpret import record_attention
from vitrail.models import MODELS, build
from vitrail.nn.scores import ScoreName

TINY = {"width": 12, "depth": 2, "num_heads": 3, "num_classes": 5, "patch_size": 8, "image_size": (16, 24)}


def test_tokens_equal_those_of_transformers():
    reference = transformers.ViTModel(
        transformers.ViTConfig(
            hidden_size=12,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=48,
            image_size=(16, 24),
            patch_size=8,
            layer_norm_eps=1e-6,
        ),
        add_pooling_layer=False,
    ).eval()
    for parameter in reference.parameters():
        nn.init.normal_(parameter, std=0.3)
    model = build("vit_ti16", **TINY).eval()
    missing = model.load_state_dict(_from_transformers(reference.state_dict()), strict=False)
    images = torch.randn(2, 3, 16, 24)

    expected = reference(images).last_hidden_state
    assert missing.missing_keys == ["head.weight", "head.bias"]
    torch.testing.assert_close(model.tokens(images), expected, rtol=1e-4, atol=1e-5)  # other order of sums


def _from_transformers(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename by hand, independently of the product's own key tables."""
    ours = {
        "stem.weight": state["embeddings.patch_embeddings.projection.weight"],
        "stem.bias": state["embeddings.patch_embeddings.projection.bias"],
        "prefix": state["embeddings.cls_token"][0],
        "positions.table": state["embeddings.position_embeddings"][0],
        "norm.weight": state["layernorm.weight"],
        "norm.bias": state["layernorm.bias"],
    }
    layers = sorted({key.rsplit(".attention.", 1)[0] for key in state if ".attention.q_proj" in key})
    assert len(layers) == 2, sorted(state)
    for index, layer in enumerate(layers):
        names = {
            "mixer_norm": "layernorm_before",
            "mixer.projection": "attention.o_proj",
            "mlp_norm": "layernorm_after",
            "mlp.expand": "mlp.fc1",
            "mlp.contract": "mlp.fc2",
        }
        for kind in ("weight", "bias"):
            for our_name, their_name in names.items():
                ours[f"blocks.{index}.{our_name}.{kind}"] = state[f"{layer}.{their_name}.{kind}"]
            parts = [state[f"{layer}.attention.{part}_proj.{kind}"] for part in "qkv"]
            ours[f"blocks.{index}.mixer.qkv.{kind}"] = torch.cat(parts)
    return ours


def test_a_distilled_model_averages_its_two_heads():
    model, images = build("deit_ti16_distilled", **TINY).eval(), torch.randn(2, 3, 16, 24)
    tokens = model.tokens(images)
    expected = (model.head.label(tokens[:, 0]) + model.head.teacher(tokens[:, 1])) / 2
    torch.testing.assert_close(model(images), expected)


def test_mean_pooling_reads_the_patches_only():
    model, images = build("vit_ti16", **TINY, pool="mean").eval(), torch.randn(2, 3, 16, 24)
    torch.testing.assert_close(model(images), model.head(model.tokens(images)[:, 1:].mean(1)))


@pytest.mark.parametrize("size", [(16, 24), (37, 53)])
def test_a_flatten_head_reads_the_patches_of_the_native_grid(size):
    model, images = build("vit_ti16", **TINY, pool="flatten").eval(), torch.randn(2, 3, *size)
    assert model.head.weight.shape == (5, 6 * 12)
    assert model(images).shape == (2, 5)
    if size == (16, 24):
        torch.testing.assert_close(model(images), model.head(model.tokens(images)[:, 1:].flatten(1)))


@pytest.mark.parametrize(("pool", "width"), [("class", 12), ("mean", 12), ("flatten", 72)])
def test_a_head_may_have_a_hidden_layer(pool, width):
    model = build("vit_ti16", **TINY, pool=pool, head_hidden_dim=7).eval()
    assert model.head.expand.weight.shape == (7, width)
    assert model(torch.randn(2, 3, 16, 24)).shape == (2, 5)


def test_features_put_each_patch_at_its_place():
    model, images = build("vit_ti16", **TINY).eval(), torch.randn(2, 3, 16, 20)
    (features,) = model.features(images)
    assert features.shape == (2, 12, 2, 3)
    assert torch.equal(features[1, :, 1, 2], model.tokens(images)[1, 1 + 5])


def test_without_positions_the_order_of_the_patches_does_not_matter():
    model, images = build("vit_ti16", **TINY, positions="none").eval(), torch.randn(2, 3, 16, 24)
    torch.testing.assert_close(model(images.roll(8, dims=2)), model(images), rtol=1e-5, atol=1e-6)


def test_the_residual_stream_stays_narrow_under_autocast():
    model = build("vit_ti16", **TINY, layer_scale=0.1, drop_path=0.3)
    types = set()
    for block in model.blocks:
        block.register_forward_hook(lambda block, given, result: types.add(result.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, 3, 16, 24))
    assert types == {torch.bfloat16}


CONVOLUTIONS = {"channels": [5, 7], "strides": [2, 2]}


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "relative_bias", "pairwise", "none"])
@pytest.mark.parametrize(
    "stem", ["patch", "mlp", {**CONVOLUTIONS, "norm": "layer"}, {**CONVOLUTIONS, "norm": "batch"}]
)
def test_every_stem_and_position_scheme_builds_and_runs(positions, stem):
    model = build("vit_ti16", **TINY, stem=stem, positions=positions, class_token=False, pool="mean")
    assert model(torch.randn(3, 3, 21, 13)).shape == (3, 5)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "relative_bias", "pairwise"])
def test_with_positions_the_order_of_the_patches_matters(positions):
    changes = {**TINY, "num_heads": 1, "positions": positions}
    model, images = build("vit_ti16", **changes).eval(), torch.randn(2, 3, 40, 56)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    assert not torch.allclose(model(images.roll(8, dims=2)), model(images), rtol=1e-3, atol=1e-3)
    with record_attention(model) as maps:
        model(images)
    assert [each.weights.shape[-1] for each in maps] == [1 + 5 * 7] * 2


@pytest.mark.parametrize("positions", ["relative_bias", "pairwise"])
def test_a_position_bias_stands_inside_the_softmax(positions):
    model, images = build("vit_ti16", **TINY, positions=positions).eval(), torch.randn(2, 3, 16, 24)
    first = model.blocks[0].mixer
    nn.init.zeros_(first.qkv.weight)
    nn.init.normal_(first.positions.table)
    with record_attention(model, layers=0) as maps:
        model(images)
    expected = first.positions((2, 3)).softmax(dim=-1)
    torch.testing.assert_close(maps[0].weights, expected.expand(2, -1, -1, -1))


@pytest.mark.parametrize("score", get_args(ScoreName))
def test_attention_takes_every_score(score):
    model, images = build("vit_ti16", **TINY, score=score), torch.randn(2, 3, 21, 13)
    model(images).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("stem", ["patch", CONVOLUTIONS])
def test_a_norm_may_follow_the_stem(stem):
    model, patches = build("vit_ti16", **TINY, stem=stem, stem_norm=True), []
    model.stem.register_forward_hook(lambda stem, given, result: patches.append(result))
    model(torch.randn(2, 3, 21, 13))
    torch.testing.assert_close(patches[0].mean(dim=1), torch.zeros(2, 3, 2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("place", ["pre", "post", "branch_post"])
def test_the_norm_stands_in_any_of_three_places(place):
    changes = {"norm_place": place, "dropout": 0.1, "layer_scale": 0.5, "drop_path": 0.1, "norm_eps": 1e-3}
    model = build("vit_ti16", **TINY, **changes)
    assert all(each.norm_place == place for each in model.blocks)
    assert {each.eps for each in model.modules() if isinstance(each, nn.LayerNorm)} == {1e-3}
    model(torch.randn(2, 3, 16, 24)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_tokens_of_a_post_norm_model_are_normalised_once():
    tokens = build("vit_ti16", **TINY, norm_place="post").tokens(torch.randn(2, 3, 16, 24))
    torch.testing.assert_close(tokens.mean(dim=-1), torch.zeros(2, 7), rtol=0, atol=1e-5)


def test_variants_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        MODELS["vit_b16"].width = 7
