from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.nn.attention import Attention
from vitrail.nn.rotary import GridRotary, SequenceRotary, rotate_pairs


def test_a_pair_is_a_complex_number_times_a_root_of_one():
    x, angles = torch.randn(2, 3, 5, 8), torch.randn(5, 4)
    as_complex = torch.view_as_complex(x.unflatten(-1, (4, 2)))
    turned = as_complex * torch.polar(torch.ones(5, 4), angles)
    torch.testing.assert_close(rotate_pairs(x, angles), torch.view_as_real(turned).flatten(-2))


def test_frequencies_of_a_sequence_follow_the_paper():
    ones = torch.tensor([1.0, 0.0] * 3).expand(1, 1, 7, 6)
    turned = SequenceRotary()(ones, ones)[0][0, 0]
    for position in range(7):
        for i in range(3):
            angle = torch.tensor(position / 10_000 ** (2 * i / 6))
            expected = torch.stack((angle.cos(), angle.sin()))
            torch.testing.assert_close(turned[position, 2 * i : 2 * i + 2], expected)


def test_scores_in_a_sequence_depend_on_the_distance_alone():
    query, key = (torch.randn(1, 1, 1, 8).expand(1, 1, 7, 8) for _ in range(2))
    turned_query, turned_key = SequenceRotary()(query, key)
    scores = (turned_query @ turned_key.transpose(-2, -1))[0, 0]
    for offset in range(-6, 7):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-5)
    assert scores[0].unique().numel() == 7


def test_later_queries_alone_are_turned_as_among_all():
    query, key = torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 4)
    rotary = SequenceRotary()
    torch.testing.assert_close(rotary(query[:, :, 5:], key)[0], rotary(query, key)[0][:, :, 5:])


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(2, 5), columns=st.integers(2, 5), down=st.integers(0, 1), right=st.integers(0, 1))
def test_scores_in_a_grid_depend_on_the_offset_alone(rows, columns, down, right):
    torch.manual_seed(0)
    query, key = (torch.randn(1, 1, 1, 8).expand(1, 1, rows * columns, 8) for _ in range(2))
    turned_query, turned_key = GridRotary()(query, key, grid=(rows, columns))
    scores = (turned_query @ turned_key.transpose(-2, -1)).reshape(rows, columns, rows, columns)
    first = scores[0, 0, down, right]
    for row in range(rows - down):
        for column in range(columns - right):
            score = scores[row, column, row + down, column + right]
            torch.testing.assert_close(score, first, rtol=1e-4, atol=1e-5)


def test_a_grids_columns_turn_the_first_half_and_its_rows_the_second():
    x = torch.randn(1, 1, 15, 8)
    turned = GridRotary()(x, x, grid=(3, 5))[0].reshape(3, 5, 8)
    original = x.reshape(3, 5, 8)
    torch.testing.assert_close(turned[:, 0, :4], original[:, 0, :4])
    torch.testing.assert_close(turned[0, :, 4:], original[0, :, 4:])
    # Heo et al. 2024: angle = place * 100^(-i / (dim / 4)), here for place 2 and i 1
    angle = torch.tensor(2 * 100 ** (-1 / 2))
    expected = torch.view_as_complex(original[1, 2, 2:4]) * torch.polar(torch.tensor(1.0), angle)
    torch.testing.assert_close(turned[1, 2, 2:4], torch.view_as_real(expected))


def test_prefix_tokens_are_not_turned():
    x = torch.randn(2, 3, 17, 4)
    turned_query, turned_key = GridRotary()(x, x, grid=(3, 5))
    assert torch.equal(turned_query[:, :, :2], x[:, :, :2])
    assert torch.equal(turned_key[:, :, :2], x[:, :, :2])
    assert not torch.equal(turned_key[:, :, 3:], x[:, :, 3:])


def test_turning_keeps_lengths_and_type():
    x = torch.randn(2, 3, 15, 8).bfloat16()
    turned = GridRotary()(x, x, grid=(3, 5))[0]
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned.float().norm(dim=-1), x.float().norm(dim=-1), rtol=0.02, atol=0)


def test_attention_with_positions_tells_permuted_tokens_apart():
    x, order = torch.randn(1, 15, 8), torch.randperm(15)
    for positions in (GridRotary(), SequenceRotary()):
        layer = Attention(8, 2, positions=positions)
        out, permuted = layer(x, grid=(3, 5)), layer(x[:, order], grid=(3, 5))
        assert not torch.allclose(permuted, out[:, order], atol=1e-4)
