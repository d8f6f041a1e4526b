from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.core.errors import ConfigError
from vitrail.nn.masks import (
    causal_mask,
    hide_padding,
    masked_softmax,
    neighbourhood_mask,
    padding_mask,
    read_key_mask,
)
from vitrail.nn.windows import Windows, split_windows, window_mask


def test_causal_mask_lets_a_token_see_itself_and_the_past():
    mask = causal_mask(5)
    assert mask.shape == (1, 1, 5, 5)
    assert all(mask[0, 0, query, key] == (key <= query) for query in range(5) for key in range(5))


def test_padding_mask_hides_what_follows_each_length():
    mask = padding_mask(torch.tensor([0, 2, 3]), 3)
    assert mask[:, 0, 0].tolist() == [[False, False, False], [True, True, False], [True, True, True]]


def test_masks_join_by_and():
    joined = causal_mask(3) & padding_mask(torch.tensor([2, 3]), 3)
    assert joined.shape == (2, 1, 3, 3)
    assert joined[0, 0, 2].tolist() == [True, True, False]


def test_neighbourhood_mask_measures_rows_and_columns():
    mask = neighbourhood_mask((3, 5), 1, num_prefix=2)[0, 0]
    assert mask[:2].all()
    assert mask[:, :2].all()
    patches = mask[2:, 2:]
    for query in range(15):
        for key in range(15):
            near = abs(query // 5 - key // 5) <= 1 and abs(query % 5 - key % 5) <= 1
            assert patches[query, key] == near
    assert torch.equal(neighbourhood_mask((3, 5), 1)[0, 0], patches)


def _window_mask(grid, window, shift):
    windows = Windows(grid, window, shift)
    mask = window_mask(windows)
    if mask is None:
        return torch.ones(windows.num_windows, windows.num_tokens, windows.num_tokens, dtype=torch.bool)
    return mask[:, 0]


@settings(max_examples=20, deadline=None)
@given(
    windows=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    data=st.data(),
)
def test_shifted_windows_join_only_tokens_that_were_near_before_the_roll(windows, window, data):
    shift = tuple(data.draw(st.integers(0, size - 1)) for size in window)
    grid = (windows[0] * window[0], windows[1] * window[1])
    place = torch.stack(
        torch.meshgrid(*(torch.arange(length).float() for length in grid), indexing="ij"), dim=-1
    )
    rolled = place.roll((-shift[0], -shift[1]), dims=(0, 1))

    mask = _window_mask(grid, window, shift)

    places = split_windows(rolled[None], window)  # windows tokens 2
    distance = (places[:, :, None] - places[:, None, :]).abs()
    near = (distance < torch.tensor(window)).all(-1)
    # A single window along an axis holds both ends of the image, as near as any two of its tokens.
    for axis in range(2):
        if windows[axis] == 1 and shift[axis]:
            wrapped = places[..., axis] < shift[axis]
            near &= wrapped[:, :, None] == wrapped[:, None, :]
    assert torch.equal(mask, near)


def test_a_padding_mask_is_read_as_one_row_for_each_sequence():
    mask = padding_mask(torch.tensor([1, 3]), 3)
    assert read_key_mask(mask, layer="pooling").tolist() == [[True, False, False], [True, True, True]]


@pytest.mark.parametrize("shape", [(1, 1, 3, 3), (2, 3, 1, 5)])
def test_a_mask_that_differs_by_query_or_head_is_no_padding_mask(shape):
    with pytest.raises(ConfigError, match=r"for pooling\. Expected a padding mask"):
        read_key_mask(torch.ones(shape, dtype=torch.bool), layer="pooling")


def test_hidden_padding_is_zero_even_where_it_is_not_finite():
    x = torch.tensor([[[1.0], [float("nan")]]])
    assert hide_padding(x, padding_mask(torch.tensor([1]), 2), layer="pooling").tolist() == [[[1.0], [0.0]]]
    assert hide_padding(x, None, layer="pooling") is x


@pytest.mark.parametrize("is_masked", [True, False])
def test_masked_softmax_is_over_the_keys_that_each_query_of_each_head_may_see(is_masked):
    scores = torch.randn(2, 3, 4, 5)
    mask = torch.rand(2, 3, 4, 5) < 0.5
    mask[0, 1, 2] = mask[1, 0] = False

    weights = masked_softmax(scores, mask if is_masked else None)

    for index in itertools.product(range(2), range(3), range(4)):
        seen = mask[index] if is_masked else torch.ones(5, dtype=torch.bool)
        torch.testing.assert_close(weights[index][seen], scores[index][seen].softmax(0))
        assert not weights[index][~seen].any()


@pytest.mark.parametrize("shift", [(0, 0), (1, 2)])
def test_padding_of_windows_is_seen_by_padding_only(shift):
    grid, window, padding = (4, 9), (2, 3), (1, 2)
    is_padding = torch.zeros(grid)
    is_padding[3:] = is_padding[:, 7:] = 1
    rolled = is_padding.roll((-shift[0], -shift[1]), dims=(0, 1))

    inside = (grid[0] - padding[0], grid[1] - padding[1])
    mask = _window_mask(inside, window, shift)

    padded = split_windows(rolled[None, ..., None], window)[..., 0].bool()
    alike = padded[:, :, None] == padded[:, None, :]
    both = padded[:, :, None] & padded[:, None, :]
    assert torch.equal(mask & ~both, _window_mask(grid, window, shift) & alike & ~both)
    assert mask[both].all()
