"""The relevance of an image's places for a text is that of a class of a classifier with the same weights."""

from __future__ import annotations

import pytest
import torch

from random_weights import randomise
from vitrail.core.errors import ConfigError
from vitrail.interpret.relevance import text_relevance
from vitrail.models import build
from vitrail.models.clip import CLIP

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


@pytest.fixture
def model() -> CLIP:
    return randomise(build("clip_b32", **SIZES))


def test_it_has_the_grid_of_the_image_and_depends_on_the_text(model: CLIP) -> None:
    images = torch.randn(2, 3, 24, 32)
    texts = torch.nn.functional.normalize(torch.randn(2, 7), dim=1)

    found, other = text_relevance(model, images, texts), text_relevance(model, images, -texts)

    assert found.shape == (2, 3, 4)
    assert (found >= 0).all()
    assert not torch.allclose(found, other)


def test_each_image_is_explained_by_its_own_text(model: CLIP) -> None:
    images = torch.randn(2, 3, 24, 32)
    texts = torch.nn.functional.normalize(torch.randn(2, 7), dim=1)
    both = text_relevance(model, images, texts)

    for place in range(2):
        alone = text_relevance(model, images[place : place + 1], texts[place : place + 1])
        torch.testing.assert_close(alone[0], both[place], rtol=1e-3, atol=1e-5)


def test_the_model_is_as_before(model: CLIP) -> None:
    images = torch.randn(1, 3, 24, 32)
    expected = model.embed_images(images)
    text_relevance(model, images, torch.nn.functional.normalize(torch.ones(1, 7), dim=1))

    assert torch.equal(model.embed_images(images), expected)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_models_of_images_alone_are_refused() -> None:
    with pytest.raises(ConfigError, match="asked of a Isotropic"):
        text_relevance(build("vit_nano"), torch.zeros(1, 3, 32, 32), torch.ones(1, 10))
