"""Positions are seen by queries and keys, and never by values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from vitrail.nn.blocks import MLP
from vitrail.nn.masks import padding_mask
from vitrail.nn.placed_attention import PlacedAttention
from vitrail.nn.placed_blocks import PlacedDecoderBlock, PlacedEncoderBlock

DIM, HEADS = 12, 3
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def _attention() -> PlacedAttention:
    layer = PlacedAttention(DIM, HEADS).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


def _reference(layer: PlacedAttention) -> nn.MultiheadAttention:
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
    layer = PlacedAttention(DIM, HEADS, dropout=0.5)
    x = torch.randn(2, 5, DIM)
    assert not torch.equal(layer(x, positions=x), layer(x, positions=x))
    layer.eval()
    assert torch.equal(layer(x, positions=x), layer(x, positions=x))


def test_an_encoder_block_normalises_after_each_sum():
    block = PlacedEncoderBlock(DIM, attention=_attention(), mlp=MLP(DIM, 20)).eval()
    x, positions = torch.randn(2, 6, DIM), torch.randn(1, 6, DIM)
    mixed = F.layer_norm(x + block.attention(x, positions=positions), (DIM,))
    expected = F.layer_norm(mixed + block.mlp(mixed), (DIM,))
    torch.testing.assert_close(block(x, positions=positions, grid=(2, 3)), expected, **TOLERANCE)


def test_a_decoder_block_reads_the_queries_then_the_context():
    block = PlacedDecoderBlock(
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
