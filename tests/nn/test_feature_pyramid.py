from __future__ import annotations

import pytest
import torch

from vitrail.nn.feature_pyramid import (
    LayerNormedBlock,
    LayerNormedConvolution,
    LayerNormedStem,
    keep_inside,
    positions_inside,
)


def _settled(layer):
    """Return the layer with norms whose offsets would be seen in the padding."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer


def test_patches_are_inside_if_they_begin_before_the_image_ends():
    inside = positions_inside(torch.tensor([[8, 9], [17, 1]]), (20, 24), 8)
    assert inside.shape == (2, 1, 3, 3)
    assert inside[0, 0].int().tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert inside[1, 0].int().tolist() == [[1, 0, 0]] * 3


def test_without_padding_there_is_no_mask():
    assert positions_inside(None, (20, 24), 8) is None
    x = torch.randn(1, 2, 3, 5)
    assert keep_inside(x, None) is x


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (8, 12), (13, 18)])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_block_gives_an_image_the_same_with_and_without_padding(size, stride):
    block, x = _settled(LayerNormedBlock(3, 6, stride=stride)), torch.randn(1, 3, *size)
    padded = torch.zeros(1, 3, 14, 20)
    padded[..., : size[0], : size[1]] = x
    inside = positions_inside(torch.tensor([size]), (14, 20), stride)

    expected, result = block(x), block(padded, inside)

    rows, columns = expected.shape[-2:]
    assert (rows, columns) == (-(-size[0] // stride), -(-size[1] // stride))
    torch.testing.assert_close(result[..., :rows, :columns], expected, rtol=1e-5, atol=1e-5)
    assert result[..., rows:, :].abs().sum() + result[..., columns:].abs().sum() == 0


def test_the_stem_gives_an_image_the_same_with_and_without_padding():
    stem, images = _settled(LayerNormedStem(3, 4)), torch.randn(1, 3, 11, 18)
    padded = torch.zeros(1, 3, 16, 24)
    padded[..., :11, :18] = images
    result = stem(padded, torch.tensor([[11, 18]]))
    torch.testing.assert_close(result[..., :3, :5], stem(images), rtol=1e-5, atol=1e-5)
    assert result[..., 3:, :].abs().sum() == 0


def test_a_patch_is_normalised_by_itself():
    layer = LayerNormedConvolution(3, 8, 1, activation=None)
    x = torch.randn(2, 3, 5, 7)
    result = layer(x)
    torch.testing.assert_close(result.mean(dim=1), torch.zeros(2, 5, 7), rtol=0, atol=1e-5)
    torch.testing.assert_close(layer(x[:, :, 2:3, 4:5]), result[:, :, 2:3, 4:5], rtol=1e-5, atol=1e-5)
