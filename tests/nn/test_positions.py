from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

from vitrail.nn.positions import LearnedGridPositions, resize_grid_table
from vitrail.nn.sinusoidal import SinusoidalGridPositions, sinusoidal_grid_positions, sinusoidal_positions


def test_sinusoids_follow_the_formula():
    table = sinusoidal_positions(7, 6)
    for position in range(7):
        for i in range(3):
            angle = position / 10_000 ** (2 * i / 6)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_grid_sinusoids_equal_those_of_transformers_with_the_axes_exchanged():
    # transformers encodes the row first, MAE's own code the column
    reference = build_2d_sinusoidal_position_embedding(height=5, width=3, embed_dim=12)
    expected = reference.reshape(5, 3, 12).transpose(0, 1).flatten(0, 1)
    torch.testing.assert_close(sinusoidal_grid_positions((3, 5), 12), expected, rtol=0, atol=1e-6)


def test_grid_sinusoids_of_a_larger_grid_begin_with_those_of_a_smaller():
    small, large = sinusoidal_grid_positions((2, 3), 8), sinusoidal_grid_positions((5, 7), 8)
    assert torch.equal(large.reshape(5, 7, 8)[:2, :3], small.reshape(2, 3, 8))


def test_a_table_that_fits_is_not_copied():
    table = torch.randn(7, 3)
    assert resize_grid_table(table, (2, 3), (2, 3), num_prefix=1) is table


@settings(max_examples=20, deadline=None)
@given(
    old=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    new=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    num_prefix=st.integers(0, 2),
)
def test_resizing_keeps_prefix_rows_and_constant_tables(old, new, num_prefix):
    table = torch.full((num_prefix + old[0] * old[1], 3), 0.5)
    table[:num_prefix] = 9.0
    resized = resize_grid_table(table, old, new, num_prefix=num_prefix)

    assert resized.shape == (num_prefix + new[0] * new[1], 3)
    assert (resized[:num_prefix] == 9.0).all()
    torch.testing.assert_close(resized[num_prefix:], torch.full((new[0] * new[1], 3), 0.5))


def test_resizing_turns_with_the_grid():
    table = torch.randn(15, 2)
    resized = resize_grid_table(table, (3, 5), (7, 4)).reshape(7, 4, 2)
    turned = table.reshape(3, 5, 2).transpose(0, 1).reshape(15, 2)
    torch.testing.assert_close(
        resize_grid_table(turned, (5, 3), (4, 7)).reshape(4, 7, 2).transpose(0, 1), resized
    )


@pytest.mark.parametrize(
    ("old", "new"), [((8, 1), (3, 1)), ((8, 3), (5, 1)), ((4, 1), (9, 1)), ((3, 8), (1, 5)), ((2, 4), (1, 1))]
)
def test_grids_of_one_row_or_column_are_resized_by_the_triangle_filter_of_each_axis(old, new):
    table = torch.randn(*old, 5)
    resized = resize_grid_table(table.flatten(0, 1), old, new, interpolation="bilinear")

    def axis(before: int, after: int) -> torch.Tensor:
        step = max(before / after, 1.0)
        centres = (torch.arange(after) + 0.5) * before / after
        weights = (1 - (torch.arange(before) + 0.5 - centres[:, None]).abs() / step).clamp_min(0)
        return weights / weights.sum(-1, keepdim=True)

    expected = torch.einsum("ir,jc,rcd->ijd", axis(old[0], new[0]), axis(old[1], new[1]), table)
    torch.testing.assert_close(resized, expected.flatten(0, 1), rtol=1e-4, atol=1e-5)


def test_resizing_a_bfloat16_table_computes_in_float32():
    table = torch.randn(15, 2).bfloat16()
    expected = resize_grid_table(table.float(), (3, 5), (6, 7)).bfloat16()
    assert torch.equal(resize_grid_table(table, (3, 5), (6, 7)), expected)


def test_bilinear_resizing_follows_a_ramp_between_the_outer_patches():
    table = torch.arange(4.0)[:, None].expand(-1, 2)
    resized = resize_grid_table(table, (1, 4), (1, 8), interpolation="bilinear", antialias=False)
    expected = torch.tensor([0.0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.0])  # centres of halved patches
    torch.testing.assert_close(resized, expected[:, None].expand(-1, 2))


def test_learned_positions_resize_as_they_are_told():
    torch.manual_seed(0)
    plain = LearnedGridPositions((5, 4), 3, interpolation="bilinear", antialias=False)
    expected = resize_grid_table(plain.table, (5, 4), (2, 3), interpolation="bilinear", antialias=False)
    assert torch.equal(plain((2, 3)), expected)
    assert not torch.equal(expected, resize_grid_table(plain.table, (5, 4), (2, 3)))


def test_learned_positions_pass_gradients_through_a_resize():
    positions = LearnedGridPositions((3, 5), 4, num_prefix=2)
    positions((4, 7)).square().sum().backward()
    assert (positions.table.grad.abs().sum(dim=-1) > 0).all()


def test_sinusoidal_positions_of_prefix_tokens_are_zero():
    positions = SinusoidalGridPositions(8, num_prefix=2)
    table = positions((3, 5))
    assert table.shape == (17, 8)
    assert (table[:2] == 0).all()
    assert not list(positions.state_dict())
