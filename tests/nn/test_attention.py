from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vitrail.nn.attention import Attention, attend, attention_weights
from vitrail.nn.masks import causal_mask

SIZES = st.integers(1, 5)


class SeenByTap:
    """A tap that keeps the last query, key and explicit weights."""

    def __call__(self, query, key, *, bias, may_attend, scale, kind, grids):
        self.query, self.key, self.kind, self.grids = query, key, kind, grids
        self.weights = attention_weights(query, key, bias=bias, may_attend=may_attend, scale=scale)

    def take_weights(self, weights, *, kind, grids, scored=None):
        self.weights, self.kind, self.grids = weights, kind, grids

    def take_result(self, value, result):
        self.value, self.result = value, result


def _query_key_value(queries: int = 5, keys: int = 7, dtype: torch.dtype = torch.float32):
    shapes = ((2, 3, queries, 4), (2, 3, keys, 4), (2, 3, keys, 5))
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


@settings(max_examples=25, deadline=None)
@given(queries=SIZES, keys=SIZES, with_bias=st.booleans(), with_mask=st.booleans(), seed=st.integers(0, 99))
def test_fused_result_is_the_weights_times_the_values(queries, keys, with_bias, with_mask, seed):
    torch.manual_seed(seed)
    query, key, value = _query_key_value(queries, keys)
    options = {
        "bias": torch.randn(1, 3, queries, keys) if with_bias else None,
        "may_attend": torch.rand(2, 1, queries, keys) < 0.6 if with_mask else None,
        "scale": 0.3,
    }

    weights = attention_weights(query, key, **options)
    fused = attend(query, key, value, **options)

    torch.testing.assert_close(weights @ value, fused, rtol=1e-5, atol=1e-6)  # float32 rounding
    sums = weights.sum(dim=-1)
    torch.testing.assert_close(sums, (sums > 0).float(), rtol=1e-5, atol=1e-6)


def test_weights_follow_equation_one_of_the_paper():
    query, key, _ = _query_key_value()
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(4)
    expected = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)
    torch.testing.assert_close(attention_weights(query, key), expected)


def test_a_query_that_may_attend_to_nothing_gets_zeros_on_both_paths():
    query, key, value = _query_key_value()
    may_attend = torch.ones(1, 1, 5, 7, dtype=torch.bool)
    may_attend[:, :, 2] = False

    assert attention_weights(query, key, may_attend=may_attend)[:, :, 2].abs().max() == 0
    assert attend(query, key, value, may_attend=may_attend)[:, :, 2].abs().max() == 0


def test_masked_keys_have_no_influence():
    query, key, value = _query_key_value(5, 5)
    before = attend(query, key, value, may_attend=causal_mask(5))
    key[:, :, 3:], value[:, :, 3:] = 9.0, -9.0
    after = attend(query, key, value, may_attend=causal_mask(5))

    assert torch.equal(before[:, :, :3], after[:, :, :3])
    assert not torch.equal(before[:, :, 3:], after[:, :, 3:])


def test_softmax_of_bfloat16_scores_is_computed_in_float32():
    scores = 9 * torch.randn(5, 700).bfloat16()
    assert torch.equal(scores.softmax(-1), scores.float().softmax(-1).bfloat16())


def test_multi_head_attention_equals_torchs():
    layer, reference = Attention(6, 3), nn.MultiheadAttention(6, 3, batch_first=True)
    nn.init.normal_(layer.qkv.bias)
    reference.in_proj_weight, reference.in_proj_bias = layer.qkv.weight, layer.qkv.bias
    reference.out_proj.weight, reference.out_proj.bias = layer.projection.weight, layer.projection.bias
    x = torch.randn(2, 5, 6)

    expected, weights = reference(x, x, x, average_attn_weights=False)
    layer.tap = seen = SeenByTap()
    actual = layer(x)

    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(seen.weights, weights, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(seen.weights @ seen.value, seen.result, rtol=1e-5, atol=1e-6)
    assert seen.result.requires_grad


def test_permuting_the_tokens_permutes_the_result():
    layer, x, order = Attention(6, 3), torch.randn(2, 5, 6), torch.randperm(5)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order], rtol=1e-5, atol=1e-6)


def test_autocast_gives_bfloat16_and_gradients_to_every_weight():
    layer = Attention(6, 3)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(torch.randn(2, 5, 6))
    out.float().square().sum().backward()

    assert out.dtype == torch.bfloat16
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.compiled
@pytest.mark.parametrize("autocast", [False, True])
def test_compiled_attention_is_one_graph_and_equals_eager(autocast):
    layer, x = Attention(6, 3), torch.randn(2, 5, 6)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=0)


@pytest.mark.parametrize(("head_dim", "value_dim"), [(2, 5), (5, None), (None, 7), (6, 1)])
def test_heads_are_as_wide_as_asked_for(head_dim, value_dim):
    layer, x = Attention(6, 3, head_dim=head_dim, value_dim=value_dim), torch.randn(2, 5, 6)
    wide, value_wide = head_dim or 2, value_dim or 2
    matrices = layer.qkv.weight.split([3 * wide, 3 * wide, 3 * value_wide])
    query, key, value = (
        (x @ matrix.T + bias).unflatten(-1, (3, -1))
        for matrix, bias in zip(
            matrices, layer.qkv.bias.split([3 * wide, 3 * wide, 3 * value_wide]), strict=True
        )
    )
    heads = []
    for head in range(3):
        scores = query[:, :, head] @ key[:, :, head].mT / math.sqrt(wide)
        heads.append(scores.softmax(-1) @ value[:, :, head])
    expected = torch.cat(heads, dim=-1) @ layer.projection.weight.T + layer.projection.bias
    torch.testing.assert_close(layer(x), expected)


def test_heads_of_given_widths_need_not_divide_the_channels():
    assert Attention(7, 3, head_dim=2, value_dim=4)(torch.randn(1, 5, 7)).shape == (1, 5, 7)
    with pytest.raises(AssertionError, match="3 heads do not divide 7"):
        Attention(7, 3, head_dim=2)
