from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.nn.masks import causal_mask, neighbourhood_mask, padding_mask, shifted_window_mask
from vitrail.nn.patches import split_windows


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
    cells = mask[2:, 2:]
    for query in range(15):
        for key in range(15):
            near = abs(query // 5 - key // 5) <= 1 and abs(query % 5 - key % 5) <= 1
            assert cells[query, key] == near


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

    mask = shifted_window_mask(grid, window, shift)[:, 0]

    places = split_windows(rolled[None], window)  # windows tokens 2
    distance = (places[:, :, None] - places[:, None, :]).abs()
    near = (distance < torch.tensor(window)).all(-1)
    # A single window along an axis holds both ends of the image, as near as any two of its tokens.
    for axis in range(2):
        if windows[axis] == 1 and shift[axis]:
            wrapped = places[..., axis] < shift[axis]
            near &= wrapped[:, :, None] == wrapped[:, None, :]
    assert torch.equal(mask, near)
