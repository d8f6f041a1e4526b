from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from making.small_models import MLP_MIXER
from vitrail.models import build


@pytest.mark.parametrize("size", [(16, 24), (37, 53)])
def test_an_image_is_completed_with_zeros_to_whole_patches(size):
    model, images = build("mixer_s16", **MLP_MIXER).eval(), torch.randn(2, 3, *size)
    padded = F.pad(images, (0, -size[1] % 4, 0, -size[0] % 4))
    assert torch.equal(model(images), model(padded))


def test_patches_change_places_with_other_results():
    model, images = build("mixer_s16", **MLP_MIXER).eval(), torch.randn(2, 3, 16, 24)
    exchanged = torch.cat((images[:, :, 8:], images[:, :, :8]), dim=2)
    assert (model(exchanged) - model(images)).abs().max() > 1e-3
