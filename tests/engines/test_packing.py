from __future__ import annotations

import pytest
import torch
from torch import nn

from making.small_exports import images_for, small_vit
from making.small_models import DETR, MVITV2
from vitrail.engines.packing import (
    PackedLinear,
    PackedParts,
    copy_for_inference,
    pack_linear_layers,
)
from vitrail.models import build
from vitrail.nn.blocks import MLP
from vitrail.nn.linear import Linear


@pytest.mark.parametrize("rows", [1, 7])
def test_an_packed_layer_computes_what_the_layer_does(rows: int) -> None:
    linear, x = nn.Linear(70, 90), torch.randn(2, rows, 70)

    with torch.inference_mode():
        plain, activated = PackedLinear(linear)(x), PackedLinear(linear, activation="gelu")(x)

        torch.testing.assert_close(plain, linear(x))
        torch.testing.assert_close(activated, nn.functional.gelu(linear(x)))


def test_an_packed_weight_can_be_read() -> None:
    linear = nn.Linear(70, 90)

    torch.testing.assert_close(PackedLinear(linear).weight, linear.weight.detach(), rtol=0, atol=0)


def test_a_model_with_packed_layers_computes_as_before_and_the_given_one_is_as_it_was() -> None:
    loaded = small_vit()
    images, before = images_for(loaded), dict(loaded.model.named_modules())

    model = pack_linear_layers(copy_for_inference(loaded.model))

    with torch.inference_mode():
        torch.testing.assert_close(model(images), loaded.model(images))
    assert dict(loaded.model.named_modules()) == before
    assert sum(isinstance(each, PackedLinear) for each in model.modules()) == 2 * 4  # not the small head


def test_gelu_becomes_part_of_the_product_before_it() -> None:
    mlp = MLP(70, 90).eval()
    x = torch.randn(2, 5, 70)
    with torch.inference_mode():
        expected = mlp(x)

        pack_linear_layers(mlp)

        torch.testing.assert_close(mlp(x), expected)
    assert mlp.expand.activation == "gelu"
    assert isinstance(mlp.activation, nn.Identity)


def test_a_copy_shares_its_tensors() -> None:
    loaded = small_vit()

    copied = copy_for_inference(loaded.model)

    pairs = zip(copied.parameters(), loaded.model.parameters(), strict=True)
    assert all(one is other for one, other in pairs)


def test_parts_of_a_layer_are_those_of_its_outputs() -> None:
    linear, x = Linear(70, 90), torch.randn(2, 5, 70)
    packed = PackedParts(linear)

    with torch.inference_mode():
        for start, stop in [(0, 30), (30, 90), (0, 30)]:
            expected = linear(x)[..., start:stop]
            torch.testing.assert_close(packed.part(x, start, stop), expected)
            torch.testing.assert_close(linear.part(x, start, stop), expected)


@pytest.mark.parametrize("name", ["mvitv2_t", "detr_r50"])
def test_layers_that_are_asked_for_parts_are_packed(name: str) -> None:
    changes = {"mvitv2_t": MVITV2, "detr_r50": DETR}[name]
    model = build(name, **changes).eval()
    images = torch.randn(2, 3, 48, 64)

    packed = pack_linear_layers(copy_for_inference(model))

    with torch.inference_mode():
        expected, found = model(images), packed(images)
    if isinstance(expected, tuple):
        expected, found = expected[0], found[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert any(isinstance(each, PackedParts) for each in packed.modules())


def test_small_layers_are_left_alone() -> None:
    layers = pack_linear_layers(nn.Sequential(Linear(7, 5), Linear(70, 90)))
    assert [isinstance(each, PackedLinear) for each in layers] == [False, True]
