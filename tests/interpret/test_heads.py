"""What heads do, and heads silenced."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from making.random_weights import randomise
from making.small_translators import small_translator
from vitrail.core.errors import ConfigError
from vitrail.interpret import record_attention
from vitrail.interpret.heads import HeadMeter, head_overlap, silence_heads
from vitrail.models import build
from vitrail.nn.attention import Attention

TINY: dict[str, dict[str, Any]] = {
    "vit_ti16": {"image_size": (12, 18), "patch_size": 6, "width": 12, "depth": 2, "num_heads": 3},
    "pvt_t": {"image_size": (32, 32)},
    "mvitv2_t": {"image_size": (32, 32)},
}


def tiny(name: str, **changes: Any) -> Any:
    return build(name, **(TINY[name] | {"num_classes": 3} | changes)).eval()


def distance_by_loops(
    weights: torch.Tensor, grids: tuple[tuple[int, int], tuple[int, int]], size: tuple[int, int]
) -> float:
    """Average the distance in pixels of one head, patch by patch, without the prefix."""
    (query_rows, query_columns), (key_rows, key_columns) = grids
    first_query = weights.shape[0] - query_rows * query_columns
    first_key = weights.shape[1] - key_rows * key_columns
    total = 0.0
    for query in range(query_rows * query_columns):
        y = (query // query_columns + 0.5) * size[0] / query_rows
        x = (query % query_columns + 0.5) * size[1] / query_columns
        row = weights[first_query + query, first_key:].tolist()
        distances = [
            math.dist(
                (y, x),
                (
                    (key // key_columns + 0.5) * size[0] / key_rows,
                    (key % key_columns + 0.5) * size[1] / key_columns,
                ),
            )
            for key in range(key_rows * key_columns)
        ]
        total += sum(w * d for w, d in zip(row, distances, strict=True)) / sum(row)
    return total / (query_rows * query_columns)


def measured(model: Any, images: list[torch.Tensor]) -> HeadMeter:
    meter = HeadMeter()
    for image in images:
        with torch.no_grad(), meter.measure(model, (image.shape[-2], image.shape[-1])):
            model(image)
    return meter


@pytest.mark.parametrize("name", ["vit_ti16", "pvt_t", "mvitv2_t"])
def test_distances_are_those_of_loops_over_patches_whatever_the_grids(name: str) -> None:
    model = tiny(name)
    images = [torch.randn(1, 3, *model.config.image_size) for _ in range(2)]
    chosen = 0 if name == "mvitv2_t" else 1  # its first layer has the finest queries
    expected = []
    for image in images:
        with torch.no_grad(), record_attention(model, layers=chosen) as maps:
            model(image)
        (found,) = maps
        assert found.grid is not None
        grids = (found.query_grid or found.grid, found.grid)
        expected.append(
            [distance_by_loops(head, grids, model.config.image_size) for head in found.weights[0]]
        )
    mean = torch.tensor(expected).mean(dim=0)

    layer = next(each for each in measured(model, images).layers() if each.layer == found.layer)

    torch.testing.assert_close(torch.tensor(layer.distance_px), mean, rtol=1e-4, atol=1e-4)


def test_even_attention_has_the_entropy_of_all_keys_and_equal_heads() -> None:
    model = tiny("vit_ti16", class_token=False, pool="mean")
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.qkv.weight.zero_()
    num_tokens = 6

    meter = measured(model, [torch.randn(1, 3, 12, 18)])

    for layer in meter.layers():
        assert layer.most_entropy == pytest.approx(math.log(num_tokens))
        assert layer.entropy == pytest.approx([math.log(num_tokens)] * 3, rel=1e-5)
        assert layer.entropy_shares == pytest.approx([1.0] * 3, rel=1e-5)
    (group,) = meter.groups()
    assert group.num_heads == (3, 3)
    torch.testing.assert_close(group.similarity, torch.ones(6, 6))


def test_the_similarity_of_heads_is_one_less_the_total_variation_of_their_rows() -> None:
    model = tiny("vit_ti16")
    image = torch.randn(1, 3, 12, 18)
    with torch.no_grad(), record_attention(model) as maps:
        model(image)
    heads = [head for recorded in maps for head in recorded.weights[0]]  # seven tokens, all compared
    expected = torch.tensor(
        [[torch.minimum(first, second).sum(dim=-1).mean() for second in heads] for first in heads]
    )

    (group,) = measured(model, [image]).groups()

    assert group.layers == ("blocks.0.mixer", "blocks.1.mixer")
    torch.testing.assert_close(group.similarity, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(group.similarity, group.similarity.T)
    first, second = torch.eye(5)[None, :1], torch.eye(5)[None, 1:3]  # without a common key
    assert head_overlap(first, second).tolist() == [[0.0, 0.0]]


def test_layers_stand_together_where_they_attend_over_the_same_tokens() -> None:
    model = tiny("pvt_t")

    meter = measured(model, [torch.randn(1, 3, 32, 32)])

    stages = [layer.layer.split(".")[1] for layer in meter.layers()]
    grouped = [{layer.split(".")[1] for layer in group.layers} for group in meter.groups()]
    assert stages == sorted(stages)
    assert all(len(stage) == 1 for stage in grouped)
    assert len(grouped) == 4


def test_sentences_of_other_lengths_part_encoder_decoder_and_their_bridge() -> None:
    model = small_translator().model
    meter = HeadMeter()
    for lengths in ((5, 5), (7, 4)):
        source, target = (torch.randint(3, 20, (1, length)) for length in lengths)
        with torch.no_grad(), meter.measure(model, None):
            model(source, torch.tensor([lengths[0]]), target)

    kinds = {layer.layer: layer.kind for layer in meter.layers()}
    assert all(layer.distance_px is None for layer in meter.layers())
    assert sorted(kinds.values()) == ["cross"] * 3 + ["self"] * 4
    assert sorted(len(group.layers) for group in meter.groups()) == [1, 3, 3]
    causal = next(layer for layer in meter.layers() if "decoder.0.self" in layer.layer)
    reach = [math.lgamma(length + 1) / length for length in (5, 4)]  # mean of log 1 .. log length
    assert causal.most_entropy == pytest.approx(sum(reach) / 2, rel=1e-5)

    of_images = HeadMeter(over_images_only=True)
    with torch.no_grad(), of_images.measure(model, None):
        model(source, torch.tensor([lengths[0]]), target)
    assert of_images.layers() == ()


def test_a_mixer_whose_weights_do_not_sum_to_one_is_left_out() -> None:
    model = tiny("vit_ti16", mixer="pooling")

    meter = measured(model, [torch.randn(1, 3, 12, 18)])

    assert meter.layers() == ()
    assert meter.groups() == ()
    assert list(meter.left_out) == ["blocks.0.mixer", "blocks.1.mixer"]
    assert meter.num_samples == 1


class OneLayer(nn.Module):
    """Nothing but a layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = Attention(12, 3, head_dim=5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mixer(x)


def test_a_silenced_head_is_one_whose_columns_are_zero() -> None:
    model, x = randomise(OneLayer()), torch.randn(2, 5, 12)
    expected = model(x)
    with torch.no_grad():
        weight = model.mixer.projection.weight
        kept = weight.clone()
        weight[:, 4:8] = 0  # head 1 of width 4
        without = model(x)
        weight.copy_(kept)

    with silence_heads(model, {"mixer": [1]}, queries=[3]):
        silenced = model(x)

    torch.testing.assert_close(silenced[:, 3], without[:, 3])
    others = [0, 1, 2, 4]
    assert torch.equal(silenced[:, others], expected[:, others])
    assert torch.equal(model(x), expected)
    with silence_heads(model, {"mixer": [0, 1, 2]}):
        only_bias = model(x)[:, 0]
    torch.testing.assert_close(only_bias, model.mixer.projection.bias.expand(2, -1))


@pytest.mark.parametrize(
    ("heads", "message"),
    [({"blocks.9.mixer": [0]}, "blocks.9.mixer"), ({"blocks.0.mixer": [3]}, "numbers from 0 to 2")],
)
def test_layers_and_heads_that_are_not_there_are_refused(heads, message: str) -> None:
    model = build("vit_nano")
    with pytest.raises(ConfigError, match=message), silence_heads(model, heads):
        pass
    assert not any(module._forward_pre_hooks for module in model.modules()), "a hook was left"
