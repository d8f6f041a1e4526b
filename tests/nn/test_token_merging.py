from __future__ import annotations

import pytest
import torch
from torch import nn

from vitrail.interpret import record_attention
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, Block
from vitrail.nn.token_merging import (
    Matching,
    TokenMergingBlock,
    average_matched,
    begin_merging,
    match_tokens,
    restore_tokens,
)


def _block() -> Block:
    torch.manual_seed(2)
    block = Block(6, mixer=Attention(6, 2), mlp=MLP(6, 9)).eval()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)
    return block


def test_every_second_patch_is_paired_with_its_most_similar_other_and_the_best_pairs_stay():
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    second = torch.tensor([[0.0, 3.0], [5.0, 0.1], [-1.0, 0.0]])
    keys = torch.stack((first, second), dim=1).flatten(0, 1)[None]

    matching = match_tokens(keys, 2)

    assert matching.merged.tolist() == [[1, 0]]  # of equal direction, then nearly so
    assert matching.partner.tolist() == [[0, 1]]
    assert matching.kept.tolist() == [[2]]


def test_no_more_edges_than_patches_and_an_odd_one_is_of_the_first_set():
    matching = match_tokens(torch.randn(2, 5, 3), 2)
    assert matching.merged.shape == (2, 2)
    assert matching.kept.shape == (2, 1)
    assert matching.partner.max() < 2


def test_a_merged_token_is_the_mean_of_all_that_it_stands_for():
    x = torch.arange(8.0)[None, :, None]  # one token before seven patches: 1 3 5 7 and 2 4 6
    matching = Matching(torch.tensor([[1, 3]]), torch.tensor([[0, 2]]), torch.tensor([[1, 1]]))

    tokens, state = average_matched(x, begin_merging(x), matching, num_prefix=1)

    assert tokens.flatten().tolist() == pytest.approx([0, 3, 7, 2, (1 + 4 + 5) / 3, 6])
    assert state.sizes.tolist() == [[1, 1, 1, 1, 3, 1]]
    assert state.owner.tolist() == [[0, 4, 3, 1, 4, 4, 5, 2]]


def test_what_is_merged_twice_still_is_the_mean_and_is_traced_to_the_first_tokens():
    torch.manual_seed(0)
    x = torch.randn(2, 11, 3)
    tokens, state = x, begin_merging(x)
    for num_merged in (3, 2, 2):
        matching = match_tokens(tokens[:, 2:], num_merged)
        tokens, state = average_matched(tokens, state, matching, num_prefix=2)

    assert tokens.shape == (2, 4, 3)
    for image in range(2):
        for token in range(4):
            members = state.owner[image] == token
            assert members.sum() == state.sizes[image, token]
            torch.testing.assert_close(tokens[image, token], x[image, members].mean(dim=0))
    torch.testing.assert_close(tokens[:, :2], x[:, :2])
    restored = restore_tokens(tokens, state)
    torch.testing.assert_close(restored.mean(dim=1), x.mean(dim=1))


def test_merging_nothing_is_the_block_itself():
    block, x = _block(), torch.randn(2, 7, 6)
    merging = TokenMergingBlock(block, num_merged=0, num_prefix=1)
    made, state = merging(x, begin_merging(x), grid=(2, 3))
    torch.testing.assert_close(made, block(x, grid=(2, 3)))
    assert state.sizes.eq(1).all()


def test_a_token_that_stands_for_others_counts_as_often_in_attention():
    """Proportional attention over merged tokens equals attention over their copies."""
    block = _block()
    x = torch.randn(1, 4, 6)
    copies = torch.tensor([[0, 1, 1, 2, 3, 3, 3]])
    merged = begin_merging(x)._replace(sizes=torch.tensor([[1.0, 2.0, 1.0, 3.0]]), owner=copies)
    expected = block(x[:, copies[0]], grid=(2, 3))

    made, state = TokenMergingBlock(block, num_merged=0, num_prefix=1)(x, merged, grid=(2, 3))

    torch.testing.assert_close(restore_tokens(made, state), expected, rtol=1e-5, atol=1e-6)


def test_recording_gives_maps_of_all_first_tokens_and_the_same_tokens():
    x = torch.randn(2, 7, 6)
    merging = TokenMergingBlock(_block(), num_merged=2, num_prefix=1)
    before, state = merging(x, begin_merging(x), grid=(2, 3))
    plain, _ = merging(before, state, grid=(2, 3))
    with record_attention(merging) as maps:
        recorded, _ = merging(before, state, grid=(2, 3))

    torch.testing.assert_close(recorded, plain, rtol=1e-5, atol=1e-6)
    assert (maps[0].grid, maps[0].num_prefix) == ((2, 3), 1)
    assert maps[0].weights.shape == (2, 2, 7, 7)
    torch.testing.assert_close(maps[0].weights.sum(-1), torch.ones(2, 2, 7))
    for image in range(2):
        alike = state.owner[image, :, None] == state.owner[image]
        columns = maps[0].weights[image].transpose(-2, -1)
        for first, second in alike.nonzero().tolist():
            torch.testing.assert_close(columns[:, first], columns[:, second])


def test_never_more_than_half_of_the_patches_vanish():
    x = torch.randn(1, 6, 6)
    made, state = TokenMergingBlock(_block(), num_merged=99, num_prefix=1)(x, begin_merging(x), grid=(1, 5))
    assert made.shape == (1, 4, 6)
    assert state.sizes.sum() == 6
