from __future__ import annotations

import pytest
import torch
from torch import nn

from vitrail.interpret.record import record_attention
from vitrail.nn.attention import Attention
from vitrail.nn.masks import causal_mask
from vitrail.nn.scores import AdditiveScore, build_score

SCORES = ["scaled_dot", "dot", "general", "additive"]


def randomise(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def explicit_scores(name, layer, query, key):
    """Score pair by pair, as the papers write it, for (heads dim) vectors of one query and one key."""
    heads = []
    for head, (q, k) in enumerate(zip(query, key, strict=True)):
        if name == "additive":
            heads.append(layer.score.weight[head] @ torch.tanh(q + k))
        elif name == "general":
            heads.append(q @ layer.score.weight[head] @ k)
        else:
            heads.append(q @ k / (len(q) ** 0.5 if name == "scaled_dot" else 1))
    return torch.stack(heads)


@pytest.mark.parametrize("name", SCORES)
def test_every_score_of_the_multi_head_layer_is_that_of_its_paper(name):
    layer, x = randomise(Attention(6, 2, score=name)), torch.randn(2, 5, 6)
    query, key, value = layer.qkv(x).reshape(2, 5, 3, 2, 3).unbind(2)  # b n h d
    expected = torch.zeros(2, 2, 5, 5)
    for b in range(2):
        for i in range(5):
            for j in range(5):
                expected[b, :, i, j] = explicit_scores(name, layer, query[b, i], key[b, j])
    weights = expected.softmax(-1)
    out = layer.projection(torch.einsum("bhij,bjhd->bihd", weights, value).flatten(2))

    with record_attention(layer) as maps:
        recorded = layer(x)

    torch.testing.assert_close(recorded, out, rtol=1e-4, atol=1e-5)  # float32 rounding
    torch.testing.assert_close(maps[0].weights, weights, rtol=1e-4, atol=1e-5)
    assert torch.equal(layer(x), recorded)


@pytest.mark.parametrize("name", SCORES)
def test_one_recorded_query_is_that_row_of_all(name):
    layer, x = randomise(Attention(6, 2, score=name)), torch.randn(2, 5, 6)
    with record_attention(layer) as maps:
        layer(x)
    with record_attention(layer, queries=[3]) as rows:
        layer(x)
    torch.testing.assert_close(rows[0].weights, maps[0].weights[:, :, [3]], rtol=1e-5, atol=1e-6)


def test_the_general_score_begins_as_the_scaled_dot_product():
    plain, general = Attention(6, 2), Attention(6, 2, score="general")
    general.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 5, 6)
    torch.testing.assert_close(general(x), plain(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SCORES)
def test_masks_hold_for_every_score(name):
    layer, x = randomise(Attention(6, 2, score=name)), torch.randn(2, 5, 6)
    changed = x.clone()
    changed[:, 3:] = 9.0
    before, after = (layer(tokens, may_attend=causal_mask(5)) for tokens in (x, changed))
    torch.testing.assert_close(before[:, :3], after[:, :3], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SCORES)
def test_a_query_that_may_attend_to_nothing_gets_the_bias_of_the_projection_alone(name):
    layer, x = randomise(Attention(6, 2, score=name)), torch.randn(1, 5, 6)
    may_attend = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    may_attend[:, :, 2] = False
    torch.testing.assert_close(layer(x, may_attend=may_attend)[0, 2], layer.projection.bias)


@pytest.mark.parametrize("name", SCORES)
def test_gradients_reach_every_weight_of_a_score_under_autocast(name):
    layer = Attention(6, 2, score=name)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(torch.randn(2, 5, 6))
    out.float().square().sum().backward()
    assert out.dtype == torch.bfloat16
    for label, parameter in layer.named_parameters():
        assert parameter.grad is not None, label
        assert parameter.grad.isfinite().all(), label


def test_additive_scores_of_two_orthogonal_pairs():
    score = AdditiveScore(1, 2)
    nn.init.ones_(score.weight)
    query = torch.tensor([[[[100.0, 0.0]]]])
    key = torch.tensor([[[[0.0, 100.0], [-200.0, 0.0]]]])
    torch.testing.assert_close(score(query, key), torch.tensor([[[[2.0, -1.0]]]]))


def test_dot_products_keep_the_fused_path():
    for name in ("scaled_dot", "dot", "general"):
        assert not isinstance(build_score(name, num_heads=2, dim=3), AdditiveScore)


@pytest.mark.compiled
@pytest.mark.parametrize("name", SCORES)
def test_every_score_compiles_to_one_graph(name):
    layer, x = Attention(6, 2, score=name), torch.randn(2, 5, 6)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=0)
