"""Relevance of patches for a class, and for a text."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from making.random_weights import randomise
from making.small_models import MVITV2, PVT, PVTV2, RESNET, SWIN, SWINV2, VIT
from vitrail.core.errors import ConfigError
from vitrail.interpret import record_attention
from vitrail.interpret.relevance import class_relevance, start_relevance, text_classifier, weigh_edges
from vitrail.models import build

MODELS = {
    "vit_b16": (VIT, (4, 6)),
    "vit_nano": ({**VIT, "stem": "patch"}, (4, 6)),
    "deit_ti16_distilled": (VIT, (4, 6)),
    "swin_t": (SWIN, (8, 12)),
    "swinv2_t": (SWINV2, None),
    "pvt_t": (PVT, (8, 12)),
    "pvtv2_b0": (PVTV2, (8, 12)),
    "mvitv2_t": (MVITV2, (4, 6)),
}


def _model(name: str, changes: dict) -> nn.Module:
    torch.manual_seed(3)
    model = build(name, **changes).eval()
    for parameter in model.parameters():  # untrained models attend to all alike, and some heads are zero
        nn.init.normal_(parameter, std=0.4 if parameter.ndim > 1 else 0.2)
    return model


def _images(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, 16, 24, generator=torch.Generator().manual_seed(5))


def _relevance_of_the_paper(model: nn.Module, image: torch.Tensor, label: int) -> torch.Tensor:
    """Equations 5 and 6 with the matrix of all tokens, on attention that autograd itself differentiates."""
    x = model.stem(image).flatten(2).transpose(1, 2)
    x = torch.cat((model.prefix.expand(1, -1, -1), x), dim=1) + model.positions((4, 6))
    all_weights = []
    for block in model.blocks:
        layer = block.mixer
        qkv = layer.qkv(block.mixer_norm(x)).unflatten(-1, (3, layer.num_heads, layer.head_dim))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-2, -1) / math.sqrt(layer.head_dim)).softmax(dim=-1)
        weights.retain_grad()
        all_weights.append(weights)
        x = x + layer.projection((weights @ value).transpose(1, 2).flatten(2))
        x = x + block.mlp(block.mlp_norm(x))
    model.head(model.norm(x)[:, 0])[0, label].backward()
    relevance = torch.eye(x.shape[1])
    for weights in all_weights:
        relevance = relevance + (weights.grad * weights).clamp(min=0).mean(dim=1)[0].detach() @ relevance
    return relevance[0, 1:].unflatten(0, (4, 6))


def test_a_class_token_gets_the_relevance_of_the_paper():
    model, images = _model("vit_b16", VIT), _images()
    expected = [_relevance_of_the_paper(model, images[i : i + 1], label) for i, label in enumerate((4, 1))]

    actual = class_relevance(model, images, torch.tensor([4, 1]))

    torch.testing.assert_close(actual, torch.stack(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_every_family_has_relevance_of_its_own_class_and_image(name):
    changes, grid = MODELS[name]
    model, images = _model(name, changes), _images()

    both = class_relevance(model, images, torch.tensor([4, 1]))
    alone = class_relevance(model, images[1:], torch.tensor([1]))
    other = class_relevance(model, images[1:], torch.tensor([2]))

    assert grid is None or both.shape == (2, *grid)
    assert both.isfinite().all()
    assert (both >= 0).all()
    assert both.std(dim=(1, 2)).min() > 0
    torch.testing.assert_close(both[1:], alone, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(alone / alone.sum(), other / other.sum(), rtol=0.01)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(module.tap is None for module in model.modules() if hasattr(module, "tap"))


def test_the_edges_are_the_gradient_of_explicit_weights():
    weights = torch.rand(2, 3, 5, 7).softmax(dim=-1).requires_grad_()
    value = torch.randn(2, 3, 7, 4)
    result = weights @ value
    weight_of_score = torch.randn_like(result)
    (gradient,) = torch.autograd.grad((result * weight_of_score).sum(), weights)

    edges = weigh_edges(weights.detach(), value, weight_of_score)

    torch.testing.assert_close(edges, (gradient * weights).clamp(min=0).mean(dim=1).detach())


def test_windows_pull_as_the_map_of_the_whole_image_does():
    """One stage of shifted windows, some not full, against the same rule on stitched maps."""
    model = _model("swin_t", {**SWIN, "depths": (2,), "num_heads": (3,)})
    images, labels = _images(1), torch.tensor([2])
    values, gradients = [], []
    handles = [
        block.mixer.projection.register_full_backward_hook(
            lambda module, given, made: gradients.insert(0, given[0])
        )
        for block in model.stages[0].blocks
    ]
    with record_attention(model) as maps:
        kept = [
            block.mixer.qkv.register_forward_hook(lambda m, i, o: values.append(o))
            for block in model.stages[0].blocks
        ]
        model(images)[0, 2].backward()
    for handle in handles + kept:
        handle.remove()
    expected = torch.full((1, 96), 1 / 96)
    for recorded, qkv, gradient, block in reversed(
        list(zip(maps, values, gradients, model.stages[0].blocks, strict=True))
    ):
        dense_value = _to_grid(qkv[..., 12:], block)  # heads patches d
        dense_gradient = _to_grid(gradient, block)
        edges = weigh_edges(recorded.weights, dense_value[None], dense_gradient[None])
        expected = expected + 96 * torch.einsum("bq,bqk->bk", expected, edges)

    actual = class_relevance(model, images, labels)

    torch.testing.assert_close(actual.flatten(1), expected - 1 / 96, rtol=1e-4, atol=1e-6)


def _to_grid(values: torch.Tensor, block: nn.Module) -> torch.Tensor:
    """Put what stands window by window on the image's patches, head by head."""
    from vitrail.nn.windows import fit_windows, window_positions

    windows = fit_windows((8, 12), (3, 3), shifted=block.mixer.shifted)
    patches = window_positions(windows).flatten()
    dense = torch.zeros(96, values.shape[-1])
    dense[patches[patches >= 0]] = values.detach().flatten(0, -2)[patches >= 0]
    return dense.unflatten(-1, (block.mixer.num_heads, -1)).transpose(0, 1)


def test_tokens_that_the_head_reads_start_alike():
    gradient = torch.tensor([[[1.0, 1.0], [0.0, 0.0], [-2.0, 0.0]], [[0.0, 0.0], [0.0, 0.0], [3.0, 0.0]]])
    assert start_relevance(gradient).tolist() == [[0.5, 0.0, 0.5], [0.0, 0.0, 1.0]]


def test_inference_mode_and_frozen_weights_change_nothing():
    model, images, labels = _model("swin_t", SWIN), _images(1), torch.tensor([1])
    expected = class_relevance(model, images, labels)
    with torch.inference_mode():
        inside = class_relevance(model, images, labels)
    torch.testing.assert_close(inside.clone(), expected)

    model.requires_grad_(False)
    torch.testing.assert_close(class_relevance(model, images, labels), expected)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("resnet18", RESNET, "attention of a ResNet"),
        ("vit_b16", {**VIT, "mixer": "synthesizer_dense"}, "mixes its tokens without attention"),
    ],
)
def test_a_model_without_attention_is_refused(name, changes, message):
    model = build(name, **changes).eval()
    with pytest.raises(ConfigError, match=message):
        class_relevance(model, _images(1), torch.tensor([1]))
    assert all(module.tap is None for module in model.modules() if hasattr(module, "tap"))


def test_relevance_inside_a_recording_is_refused():
    model = _model("vit_b16", VIT)
    with record_attention(model), pytest.raises(ConfigError, match="being recorded already"):
        class_relevance(model, _images(1), torch.tensor([1]))


SIZES = {
    "image_size": (24, 32),
    "patch_size": 8,
    "image_width": 12,
    "image_depth": 2,
    "image_num_heads": 3,
    "embedding_dim": 7,
    "text_width": 6,
    "text_depth": 1,
    "text_num_heads": 2,
}


def test_each_image_of_a_clip_is_explained_by_its_own_text() -> None:
    model, images = randomise(build("clip_b32", **SIZES)), torch.randn(2, 3, 24, 32)
    texts = torch.nn.functional.normalize(torch.randn(2, 7), dim=1)
    before = model.embed_images(images)

    labels = torch.arange(2)
    both, other = (class_relevance(text_classifier(model, each), images, labels) for each in (texts, -texts))

    assert both.shape == (2, 3, 4)
    assert (both >= 0).all()
    assert not torch.allclose(both, other)
    for index in range(2):
        classifier = text_classifier(model, texts[index : index + 1])
        alone = class_relevance(classifier, images[index : index + 1], torch.tensor([0]))
        torch.testing.assert_close(alone[0], both[index], rtol=1e-3, atol=1e-5)
    assert torch.equal(model.embed_images(images), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_models_of_images_alone_have_no_relevance_of_a_text() -> None:
    with pytest.raises(ConfigError, match="asked of a VariedViT"):
        text_classifier(build("vit_nano"), torch.ones(1, 10))
