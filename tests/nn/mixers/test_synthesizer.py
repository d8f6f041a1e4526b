from __future__ import annotations

import math

import pytest
import torch

from vitrail.interpret import record_attention
from vitrail.nn.masks import causal_mask, padding_mask
from vitrail.nn.mixers import MIXERS, MixerShape, build_mixer
from vitrail.nn.mixers.synthesizer import (
    DenseScores,
    DotProductScores,
    FactorizedDenseScores,
    FactorizedRandomScores,
    MixedScores,
    RandomScores,
)

SHAPE = MixerShape(12, 3, 2 + 15, (3, 5))
TEXT = MixerShape(12, 3, 11)
NAMES = [name.removeprefix("synthesizer_") for name in MIXERS if name.startswith("synthesizer_")]


def weights_of(mixer, x, **arguments):
    with torch.no_grad(), record_attention(mixer) as maps:
        mixer(x, **arguments)
    return maps[0].weights


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("grid", [(3, 5), (4, 2)])
def test_the_weights_times_the_values_are_the_output(name, grid):
    mixer = build_mixer(f"synthesizer_{name}", SHAPE)
    x = torch.randn(4, 2 + grid[0] * grid[1], 12)
    mask = padding_mask(torch.tensor([10, 3, 7, 1]), x.shape[1])

    weights = weights_of(mixer, x, may_attend=mask, grid=grid)

    values = mixer.value(x).unflatten(-1, (3, 4)).transpose(1, 2)  # b h k d
    expected = mixer.projection((weights @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixer(x, may_attend=mask, grid=grid), expected)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@pytest.mark.parametrize("name", NAMES)
def test_a_query_that_may_see_nothing_gets_zeros(name):
    mixer = build_mixer(f"synthesizer_{name}", TEXT)
    mask = causal_mask(11).clone()
    mask[..., 0, 0] = False
    weights = weights_of(mixer, torch.randn(2, 11, 12), may_attend=mask)
    assert not weights[:, :, 0].any()
    torch.testing.assert_close(weights[:, :, 1:].sum(-1), torch.ones(2, 3, 10))


def test_dense_scores_are_two_layers_for_each_head():
    scores = DenseScores(TEXT)
    x = torch.randn(2, 11, 12)
    torch.nn.init.normal_(scores.key_position_bias)

    made = scores(x)

    hidden = torch.relu(scores.hidden(x))
    for head in range(3):
        weight, bias = scores.key_positions[:, head], scores.key_position_bias[:, head]
        expected = torch.nn.functional.linear(hidden[..., 4 * head : 4 * head + 4], weight, bias)
        torch.testing.assert_close(made[:, head], expected)


@pytest.mark.parametrize("kind", [DenseScores, FactorizedDenseScores])
def test_dense_scores_of_a_token_follow_from_it_alone(kind):
    scores = kind(SHAPE)
    x = torch.randn(2, 17, 12)
    changed = x.clone()
    changed[:, 5] += 1
    difference = (scores(changed, grid=(3, 5)) - scores(x, grid=(3, 5))).abs().amax((0, 1, 3))
    assert difference[5] > 0
    assert not difference[torch.arange(17) != 5].any()


@pytest.mark.parametrize("kind", [RandomScores, FactorizedRandomScores])
def test_random_scores_do_not_depend_on_the_tokens(kind):
    scores = kind(SHAPE)
    made = scores(torch.randn(2, 17, 12), grid=(3, 5))
    assert torch.equal(made, scores(torch.randn(4, 17, 12), grid=(3, 5)))
    assert made.detach().std().item() == pytest.approx(1, abs=0.2)  # of 867 draws


def test_random_scores_stand_where_their_query_and_key_are():
    scores = RandomScores(SHAPE)
    assert torch.equal(scores(torch.randn(1, 17, 12), grid=(3, 5))[0, 1], scores.position_scores[..., 1])


def test_factorised_random_scores_have_the_rank_of_their_factors():
    scores = FactorizedRandomScores(MixerShape(12, 3, 13), rank=5)(torch.randn(1, 13, 12))
    assert torch.linalg.matrix_rank(scores).tolist() == [[5, 5, 5]]


def test_factorised_dense_scores_of_the_patches_are_products_of_row_and_column():
    made = FactorizedDenseScores(SHAPE)(torch.randn(2, 17, 12), grid=(3, 5))[..., 2:]
    patches = made.detach().unflatten(-1, (3, 5))
    assert (torch.linalg.matrix_rank(patches) == 1).all()


def test_factorised_dense_scores_need_few_numbers():
    shape = MixerShape(12, 3, 14 * 14, (14, 14))
    factored, dense = (
        sum(p.numel() for p in kind(shape).parameters()) for kind in (FactorizedDenseScores, DenseScores)
    )
    hidden = 12 * 12 + 12
    assert (factored - hidden) * 7 == dense - hidden  # 28 places instead of 196


@pytest.mark.parametrize("name", NAMES)
def test_a_shorter_sequence_uses_the_leading_part(name):
    mixer = build_mixer(f"synthesizer_{name}", TEXT)
    x = torch.randn(2, 11, 12)
    mask = padding_mask(torch.tensor([7, 7]), 11)
    torch.testing.assert_close(mixer(x[:, :7]), mixer(x, may_attend=mask)[:, :7])


def test_another_grid_keeps_what_each_place_looks_at():
    """Scores that make every patch look at itself do so on a grid twice as fine."""
    mixer = build_mixer("synthesizer_random", MixerShape(12, 3, 1 + 20, (4, 5)))
    with torch.no_grad():
        mixer.scores.position_scores.copy_(9 * torch.eye(21)[..., None].expand(-1, -1, 3))

    weights = weights_of(mixer, torch.randn(1, 1 + 80, 12), grid=(8, 10))[0, 0]

    looked_at = weights[1:, 1:].argmax(-1)
    patches = torch.arange(80)
    rows, columns = looked_at // 10 - patches // 10, looked_at % 10 - patches % 10
    assert rows.abs().max() <= 1
    assert columns.abs().max() <= 1
    assert weights[0].argmax() == 0


def test_fixed_random_scores_are_drawn_saved_and_never_learned():
    mixer = build_mixer("synthesizer_fixed_random", SHAPE)
    drawn = mixer.scores.position_scores.clone()
    assert not [*mixer.scores.parameters()]
    assert drawn.std().item() == pytest.approx(1, abs=0.2)
    other = build_mixer("synthesizer_fixed_random", SHAPE)
    other.load_state_dict(mixer.state_dict())
    assert torch.equal(other.scores.position_scores, drawn)


def test_scores_of_attention_are_its_scaled_dot_products():
    scores, x = DotProductScores(TEXT), torch.randn(2, 11, 12)
    attention = build_mixer("attention", TEXT)
    with torch.no_grad():
        attention.qkv.weight[:24], attention.qkv.bias[:24] = scores.query_key.weight, scores.query_key.bias
        torch.testing.assert_close(scores(x).softmax(-1), weights_of(attention, x))


@pytest.mark.parametrize("mixture", [(0.0, 0.0), (1.5, -0.5)])
def test_mixed_scores_are_averaged_before_the_softmax(mixture):
    random, dense = RandomScores(TEXT), DenseScores(TEXT)
    mixed, x = MixedScores(random, dense), torch.randn(2, 11, 12)
    with torch.no_grad():
        mixed.mixture.copy_(torch.tensor(mixture))
    share = math.exp(mixture[0]) / (math.exp(mixture[0]) + math.exp(mixture[1]))
    torch.testing.assert_close(mixed(x), share * random(x) + (1 - share) * dense(x))
