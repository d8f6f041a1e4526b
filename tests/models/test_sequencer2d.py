from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from making.small_models import SEQUENCER2D
from vitrail.core.errors import ConfigError
from vitrail.models import build


def test_stages_have_the_published_grids():
    features = build("sequencer2d_s", depths=(1, 1, 1, 1)).features(torch.zeros(1, 3, 224, 224))
    assert [tuple(stage.shape) for stage in features] == [
        (1, 192, 32, 32),
        (1, 384, 16, 16),
        (1, 384, 16, 16),
        (1, 384, 16, 16),
    ]


def test_images_and_maps_are_completed_with_zeros():
    model, images = build("sequencer2d_s", **SEQUENCER2D).eval(), torch.randn(2, 3, 17, 35)
    assert torch.equal(model(images), model(F.pad(images, (0, 1, 0, 3))))
    assert [stage.shape[2:] for stage in model.features(images)] == [(5, 9), (3, 5), (3, 5)]

    first = model.stages[0](model.stem(images))
    second = model.stages[1].downsample
    expected = F.conv2d(F.pad(first, (0, 1, 0, 1)), second.weight, second.bias, stride=2)
    torch.testing.assert_close(second(first), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"depths": (1, 2)}, "one value for each stage"), ({"hidden_dims": (2, 0, 3)}, "at least 1")],
)
def test_stages_that_do_not_fit_together_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        build("sequencer2d_s", **{**SEQUENCER2D, **changes})
