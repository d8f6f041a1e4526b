from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.nn.blocks import MLP
from vitrail.nn.detr_attention import (
    DetrAttention,
    DetrDecoderBlock,
    DetrEncoderBlock,
    axes_inside,
    sine_positions_inside,
)
from vitrail.nn.masks import padding_mask


@pytest.mark.parametrize("grid", [(5, 7), (3, 2), (1, 1)])
def test_patches_are_those_of_the_resized_mask_of_pixels(grid):
    sizes = torch.tensor([[53, 37], [1, 71], [17, 1], [40, 36]])
    mask = torch.zeros(4, 1, 53, 71)
    for each, (height, width) in zip(mask, sizes.tolist(), strict=True):
        each[:, :height, :width] = 1

    rows, columns = axes_inside(sizes, (53, 71), grid)

    expected = F.interpolate(mask, size=grid)[:, 0].bool()
    assert torch.equal(rows[:, :, None] & columns[:, None], expected)
    assert rows[:, 0].all()
    assert columns[:, 0].all()


def test_positions_equal_their_formula_patch_by_patch():
    rows = torch.tensor([[True, True, True], [True, True, False]])
    columns = torch.tensor([[True, True, False, False], [True, True, True, True]])
    positions = sine_positions_inside(rows, columns, 8)

    assert positions.shape == (2, 12, 8)
    assert positions.dtype == torch.float32
    for image, (num_rows, num_columns) in enumerate([(3, 2), (2, 4)]):
        for row in range(num_rows):
            for column in range(num_columns):
                expected = []
                for place, count in ((row, num_rows), (column, num_columns)):
                    angle = 2 * math.pi * (place + 1) / count
                    for wavelength in (1, 10_000 ** (2 / 4)):
                        expected += [math.sin(angle / wavelength), math.cos(angle / wavelength)]
                patch = positions[image, row * 4 + column]
                torch.testing.assert_close(patch, torch.tensor(expected), rtol=0, atol=1e-5)


def test_an_image_has_the_same_positions_whatever_padding_is_behind_it():
    inside = torch.ones(1, 3, dtype=torch.bool)
    alone = sine_positions_inside(inside, inside[:, :2], 8)
    padded = sine_positions_inside(F.pad(inside, (0, 2)), F.pad(inside[:, :2], (0, 4)), 8)
    assert torch.equal(padded.unflatten(1, (5, 6))[:, :3, :2].flatten(1, 2), alone)


DIM, HEADS = 12, 3
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def _attention() -> DetrAttention:
    layer = DetrAttention(DIM, HEADS).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


def _reference(layer: DetrAttention) -> nn.MultiheadAttention:
    """Return torch's layer with the same weights."""
    reference = nn.MultiheadAttention(DIM, HEADS, batch_first=True).eval()
    reference.load_state_dict(
        {
            "in_proj_weight": layer.qkv.weight,
            "in_proj_bias": layer.qkv.bias,
            "out_proj.weight": layer.projection.weight,
            "out_proj.bias": layer.projection.bias,
        }
    )
    return reference


def test_self_attention_equals_torchs_with_positions_in_query_and_key():
    layer, x, positions = _attention(), torch.randn(2, 5, DIM), torch.randn(1, 5, DIM)
    lengths = torch.tensor([5, 3])
    out = layer(x, positions=positions, may_attend=padding_mask(lengths, 5))
    is_padding = torch.arange(5) >= lengths[:, None]
    placed = x + positions
    expected, _ = _reference(layer)(placed, placed, x, key_padding_mask=is_padding)
    torch.testing.assert_close(out, expected, **TOLERANCE)


def test_cross_attention_equals_torchs_with_the_positions_of_both_sides():
    layer = _attention()
    x, positions = torch.randn(2, 5, DIM), torch.randn(2, 5, DIM)
    context, context_positions = torch.randn(2, 7, DIM), torch.randn(1, 7, DIM)
    out = layer(x, positions=positions, context=context, context_positions=context_positions)
    expected, _ = _reference(layer)(x + positions, context + context_positions, context)
    torch.testing.assert_close(out, expected, **TOLERANCE)


def test_attention_weights_are_dropped_in_training_only():
    layer = DetrAttention(DIM, HEADS, dropout=0.5)
    x = torch.randn(2, 5, DIM)
    assert not torch.equal(layer(x, positions=x), layer(x, positions=x))
    layer.eval()
    assert torch.equal(layer(x, positions=x), layer(x, positions=x))


def test_an_encoder_block_normalises_after_each_sum():
    block = DetrEncoderBlock(DIM, attention=_attention(), mlp=MLP(DIM, 20)).eval()
    x, positions = torch.randn(2, 6, DIM), torch.randn(1, 6, DIM)
    mixed = F.layer_norm(x + block.attention(x, positions=positions), (DIM,))
    expected = F.layer_norm(mixed + block.mlp(mixed), (DIM,))
    torch.testing.assert_close(block(x, positions=positions, grid=(2, 3)), expected, **TOLERANCE)


def test_a_decoder_block_reads_the_queries_then_the_context():
    block = DetrDecoderBlock(
        DIM, self_attention=_attention(), cross_attention=_attention(), mlp=MLP(DIM, 20)
    ).eval()
    x, positions = torch.randn(2, 5, DIM), torch.randn(1, 5, DIM)
    context, context_positions = torch.randn(2, 6, DIM), torch.randn(1, 6, DIM)
    state = F.layer_norm(x + block.self_attention(x, positions=positions), (DIM,))
    read = block.cross_attention(
        state, positions=positions, context=context, context_positions=context_positions
    )
    state = F.layer_norm(state + read, (DIM,))
    expected = F.layer_norm(state + block.mlp(state), (DIM,))
    out = block(x, context, positions=positions, context_positions=context_positions, grid=(2, 3))
    torch.testing.assert_close(out, expected, **TOLERANCE)
