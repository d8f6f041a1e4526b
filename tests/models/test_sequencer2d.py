from __future__ import annotations

import torch
import torch.nn.functional as F

from making.small_models import SEQUENCER2D
from vitrail.models import build


def test_images_and_maps_are_completed_with_zeros():
    model, images = build("sequencer2d_s", **SEQUENCER2D).eval(), torch.randn(2, 3, 17, 35)
    assert torch.equal(model(images), model(F.pad(images, (0, 1, 0, 3))))
    assert [stage.shape[2:] for stage in model.features(images)] == [(5, 9), (3, 5), (3, 5)]

    first = model.stages[0](model.stem(images))
    second = model.stages[1].downsample
    expected = F.conv2d(F.pad(first, (0, 1, 0, 1)), second.weight, second.bias, stride=2)
    torch.testing.assert_close(second(first), expected)
