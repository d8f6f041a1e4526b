from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vitrail.interpret import record_attention
from vitrail.nn.activations import OverwritingReLU
from vitrail.nn.blocks import MLP
from vitrail.nn.cache import KeyValueCache
from vitrail.nn.decoder_attention import CausalAttention, CrossAttention
from vitrail.nn.decoder_blocks import PostNormDecoderBlock, PreNormDecoderBlock
from vitrail.nn.decoder_step import BlockStep
from vitrail.nn.masks import causal_mask, padding_mask
from vitrail.nn.rotary import SequenceRotary
from vitrail.nn.sequence_positions import SequenceRelativeBias

BLOCKS = [PreNormDecoderBlock, PostNormDecoderBlock]
SCHEMES = {
    "none": lambda: None,
    "rotary": SequenceRotary,
    "relative": lambda: SequenceRelativeBias(2, bidirectional=False),
}


def make_block(block: type[nn.Module], scheme: str = "none", dropout: float = 0.0) -> nn.Module:
    made = block(
        8,
        self_attention=CausalAttention(8, 2, positions=SCHEMES[scheme]()),
        cross_attention=CrossAttention(8, 2),
        mlp=MLP(8, 5, activation=OverwritingReLU),
        dropout=dropout,
    )
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


def to_torch(block: nn.Module) -> nn.TransformerDecoderLayer:
    """Return torch's layer with the weights of a block."""
    is_pre = isinstance(block, PreNormDecoderBlock)
    theirs = nn.TransformerDecoderLayer(8, 2, 5, dropout=0.0, batch_first=True, norm_first=is_pre)
    cross = block.cross_attention
    pairs = [
        (theirs.self_attn.in_proj_weight, block.self_attention.qkv.weight),
        (theirs.self_attn.in_proj_bias, block.self_attention.qkv.bias),
        (theirs.multihead_attn.in_proj_weight, torch.cat((cross.query.weight, cross.key_value.weight))),
        (theirs.multihead_attn.in_proj_bias, torch.cat((cross.query.bias, cross.key_value.bias))),
    ]
    for their_layer, layer in (
        (theirs.self_attn.out_proj, block.self_attention.projection),
        (theirs.multihead_attn.out_proj, cross.projection),
        (theirs.linear1, block.mlp.expand),
        (theirs.linear2, block.mlp.contract),
        (theirs.norm1, block.self_norm),
        (theirs.norm2, block.cross_norm),
        (theirs.norm3, block.mlp_norm),
    ):
        pairs += [(their_layer.weight, layer.weight), (their_layer.bias, layer.bias)]
    with torch.no_grad():
        for their_weight, weight in pairs:
            their_weight.copy_(weight)
    return theirs


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 5, 8)


@pytest.fixture
def context() -> Tensor:
    return torch.randn(3, 7, 8)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_equals_torchs_decoder_layer(block, x, context):
    ours, may_attend = make_block(block), padding_mask(torch.tensor([7, 2, 4]), 7)
    out = ours(x, context, may_attend=causal_mask(5), context_may_attend=may_attend)
    expected = to_torch(ours)(
        x, context, tgt_mask=~causal_mask(5)[0, 0], memory_key_padding_mask=~may_attend[:, 0, 0]
    )
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("block", BLOCKS)
def test_steps_with_a_cache_equal_whole_sequences(block, scheme, x, context):
    blocks = [make_block(block, scheme) for _ in range(2)]
    whole = x
    for each in blocks:
        whole = each(whole, context, may_attend=causal_mask(5))
    memories = [each.cross_attention.remember(context) for each in blocks]
    cache = KeyValueCache.empty(3, num_layers=2)
    for step in range(5):
        cache, newest = cache.lengthened(device=x.device), x[:, [step]]
        for layer, each in enumerate(blocks):
            newest = BlockStep(each)(newest, memories[layer], cache, layer=layer)
        torch.testing.assert_close(newest, whole[:, [step]], rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("scheme", SCHEMES)
def test_hypotheses_of_a_sentence_read_it_side_by_side(scheme, x, context):
    block = make_block(PreNormDecoderBlock, scheme)
    other = torch.cat((x[:, :1], torch.randn(3, 4, 8)), dim=1)  # they part after the first token
    expected = [block(each, context, may_attend=causal_mask(5)) for each in (x, other)]
    memory = block.cross_attention.remember(context)
    cache = KeyValueCache.empty(3, num_layers=1).lengthened(device=x.device)
    BlockStep(block)(x[:, :1], memory, cache, layer=0)
    cache = cache.expand(2)
    for step in range(1, 5):
        cache = cache.lengthened(device=x.device)
        both = torch.stack((x[:, step], other[:, step]), dim=1)
        out = BlockStep(block)(both, memory, cache, layer=0)
        torch.testing.assert_close(
            out, torch.stack([each[:, step] for each in expected], dim=1), rtol=1e-5, atol=1e-5
        )


@torch.no_grad()
@pytest.mark.parametrize("block", BLOCKS)
def test_a_bias_hides_what_a_mask_hides(block, x, context):
    block, may_attend = make_block(block), padding_mask(torch.tensor([7, 2, 4]), 7)
    expected = block(x[:, :1], context, may_attend=causal_mask(1), context_may_attend=may_attend)
    bias = torch.zeros(may_attend.shape).masked_fill(~may_attend, -torch.inf)
    cache = KeyValueCache.empty(3, num_layers=1).lengthened(device=x.device)
    out = BlockStep(block)(
        x[:, :1], block.cross_attention.remember(context), cache, layer=0, context_bias=bias
    )
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


def test_whole_sequences_are_recorded(x, context):
    block = make_block(PostNormDecoderBlock)
    with record_attention(block) as maps:
        block(x, context, may_attend=causal_mask(5))
    assert [(each.layer, each.kind) for each in maps] == [
        ("self_attention", "self"),
        ("cross_attention", "cross"),
    ]
    assert maps[0].weights.shape == (3, 2, 5, 5)
    assert maps[0].weights.triu(1).abs().max() == 0
    assert maps[1].weights.shape == (3, 2, 5, 7)


def test_branches_are_dropped_in_training_only(x, context):
    block = make_block(PreNormDecoderBlock, dropout=0.5)
    masks = {"may_attend": causal_mask(5)}
    assert not torch.equal(block(x, context, **masks), block(x, context, **masks))
    block.eval()
    assert torch.equal(block(x, context, **masks), block(x, context, **masks))


def test_weights_of_attention_are_dropped_in_training_only(x):
    attention = CausalAttention(8, 2, dropout=0.5)
    assert not torch.equal(attention(x, may_attend=causal_mask(5)), attention(x, may_attend=causal_mask(5)))
    attention.eval()
    assert torch.equal(attention(x, may_attend=causal_mask(5)), attention(x, may_attend=causal_mask(5)))
