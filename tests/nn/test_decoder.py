from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vitrail.engines.cpu.decoding import BlockStep
from vitrail.interpret import record_attention
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, TokenBatchNorm
from vitrail.nn.cache import KeyValueCache, LayerCache
from vitrail.nn.decoder import CrossAttention, CrossMemory, DecoderBlock, remember_all
from vitrail.nn.masks import causal_mask, padding_mask
from vitrail.nn.mixers.convolution import DynamicConvolution, LightConvolution
from vitrail.nn.rotary import SequenceRotary
from vitrail.nn.sequence_positions import SequenceRelativeBias

NORMS = ["pre", "post"]
STEPS = {
    "plain": lambda block: (
        lambda x, memory, cache, *, layer, context_bias=None: block(
            x, memory, context_bias=context_bias, cache=LayerCache(cache, layer)
        )
    ),
    "fast": BlockStep,
}
PASTS = {
    "attention": lambda: Attention(8, 2),
    "rotary": lambda: Attention(8, 2, positions=SequenceRotary()),
    "relative": lambda: Attention(8, 2, positions=SequenceRelativeBias(2, bidirectional=False)),
    "narrow keys": lambda: Attention(8, 2, head_dim=2, value_dim=5, positions=SequenceRotary()),
    "wide heads": lambda: Attention(8, 3, head_dim=6, value_dim=6),
    "light": lambda: LightConvolution(8, 2, kernel_size=(1, 3), causal=True),
    "dynamic": lambda: DynamicConvolution(8, 2, kernel_size=(1, 3), causal=True),
    "wide dynamic": lambda: DynamicConvolution(8, 2, kernel_size=(1, 7), causal=True),
}


def make_block(norm: str, past: str = "attention", dropout: float = 0.0) -> DecoderBlock:
    made = DecoderBlock(
        8,
        self_attention=PASTS[past](),
        cross_attention=CrossAttention(8, 2),
        mlp=MLP(8, 5, activation=nn.ReLU),
        norm=norm,
        dropout=dropout,
    )
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


def to_torch(block: nn.Module) -> nn.TransformerDecoderLayer:
    """Return torch's layer with the weights of a block."""
    theirs = nn.TransformerDecoderLayer(8, 2, 5, dropout=0.0, batch_first=True, norm_first=block.is_pre_norm)
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


@pytest.mark.parametrize("norm", NORMS)
def test_a_block_equals_torchs_decoder_layer(norm, x, context):
    ours, may_attend = make_block(norm), padding_mask(torch.tensor([7, 2, 4]), 7)
    out = ours(x, context, may_attend=causal_mask(5), context_may_attend=may_attend)
    expected = to_torch(ours)(
        x, context, tgt_mask=~causal_mask(5)[0, 0], memory_key_padding_mask=~may_attend[:, 0, 0]
    )
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("past", PASTS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("way", STEPS)
def test_steps_with_a_cache_equal_whole_sequences(way, norm, past, x, context):
    blocks = [make_block(norm, past) for _ in range(2)]
    whole = x
    for each in blocks:
        whole = each(whole, context, may_attend=causal_mask(5))
    memories = remember_all(blocks, context)
    cache = KeyValueCache.empty(3, num_layers=2)
    for step in range(5):
        cache, newest = cache.lengthened(device=x.device), x[:, [step]]
        for layer, each in enumerate(blocks):
            newest = STEPS[way](each)(newest, memories[layer], cache, layer=layer)
        torch.testing.assert_close(newest, whole[:, [step]], rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("past", PASTS)
@pytest.mark.parametrize("way", STEPS)
def test_hypotheses_of_a_sentence_read_it_side_by_side(way, past, x, context):
    block = make_block("pre", past)
    step_block = STEPS[way](block)
    other = torch.cat((x[:, :1], torch.randn(3, 4, 8)), dim=1)  # they part after the first token
    expected = [block(each, context, may_attend=causal_mask(5)) for each in (x, other)]
    memory = block.cross_attention.remember(context)
    cache = KeyValueCache.empty(3, num_layers=1).lengthened(device=x.device)
    step_block(x[:, :1], memory, cache, layer=0)
    cache = cache.expand(2)
    for step in range(1, 5):
        cache = cache.lengthened(device=x.device)
        both = torch.stack((x[:, step], other[:, step]), dim=1)
        out = step_block(both, memory, cache, layer=0)
        torch.testing.assert_close(
            out, torch.stack([each[:, step] for each in expected], dim=1), rtol=1e-5, atol=1e-5
        )


@torch.no_grad()
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("way", STEPS)
def test_a_bias_hides_what_a_mask_hides(way, norm, x, context):
    block, may_attend = make_block(norm), padding_mask(torch.tensor([7, 2, 4]), 7)
    expected = block(x[:, :1], context, may_attend=causal_mask(1), context_may_attend=may_attend)
    bias = torch.zeros(may_attend.shape).masked_fill(~may_attend, -torch.inf)
    cache = KeyValueCache.empty(3, num_layers=1).lengthened(device=x.device)
    memory = block.cross_attention.remember(context)
    out = STEPS[way](block)(x[:, :1], memory, cache, layer=0, context_bias=bias)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


def test_whole_sequences_are_recorded(x, context):
    block = make_block("post")
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
    block = make_block("pre", dropout=0.5)
    masks = {"may_attend": causal_mask(5)}
    assert not torch.equal(block(x, context, **masks), block(x, context, **masks))
    block.eval()
    assert torch.equal(block(x, context, **masks), block(x, context, **masks))


def test_weights_of_attention_are_dropped_in_training_only(x):
    attention = Attention(8, 2, dropout=0.5)
    assert not torch.equal(attention(x, may_attend=causal_mask(5)), attention(x, may_attend=causal_mask(5)))
    attention.eval()
    assert torch.equal(attention(x, may_attend=causal_mask(5)), attention(x, may_attend=causal_mask(5)))


@pytest.mark.parametrize(
    ("norm", "names"), [("pre", ["self_norm", "self_attention"]), ("post", ["self_attention", "self_norm"])]
)
def test_parameters_stand_in_the_order_of_their_use(norm, names):
    assert [name for name, _ in make_block(norm).named_children()][:2] == names


@torch.no_grad()
def test_the_keys_of_a_head_are_contiguous(context):
    (memory,) = remember_all([make_block("pre")], context)
    assert isinstance(memory, CrossMemory)
    assert memory.keys.is_contiguous()
    assert memory.values.is_contiguous()


@torch.no_grad()
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("way", STEPS)
def test_a_block_with_batch_norm_steps_by_its_running_averages(way, norm, x, context):
    block = DecoderBlock(
        8,
        self_attention=Attention(8, 2),
        cross_attention=CrossAttention(8, 2, head_dim=3, value_dim=7),
        mlp=MLP(8, 5),
        norm=norm,
        norm_layer=TokenBatchNorm,
    )
    for _ in range(3):
        block.train()(x, context, may_attend=causal_mask(5))
    whole = block.eval()(x, context, may_attend=causal_mask(5))
    (memory,), cache = remember_all([block], context), KeyValueCache.empty(3, num_layers=1)
    for step in range(5):
        cache = cache.lengthened(device=x.device)
        out = STEPS[way](block)(x[:, [step]], memory, cache, layer=0)
        torch.testing.assert_close(out, whole[:, [step]], rtol=1e-5, atol=1e-5)
