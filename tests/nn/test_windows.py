import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from vitrail.nn.windows import (
    WindowStage,
    fit_windows,
    grid_order,
    window_cells,
    window_mask,
    window_order,
)

WINDOW = (3, 4)
# Whole windows; windows to complete in both axes; in one; a covered axis; a single window; a single cell.
GRIDS = [(6, 8), (7, 9), (3, 10), (2, 9), (3, 4), (2, 3), (1, 1), (4, 5)]

sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))


@given(grid=sizes, window=sizes, shifted=st.booleans())
def test_every_cell_stands_in_one_place(grid, window, shifted):
    windows = fit_windows(grid, window, shifted=shifted)
    order, places = window_order(windows), grid_order(windows)
    cells = window_cells(windows)
    assert torch.equal(order[places], torch.arange(len(order)))
    assert cells.shape == (windows.num_windows, windows.num_tokens)
    assert sorted(cells[cells >= 0].tolist()) == list(range(grid[0] * grid[1]))


@given(grid=sizes, window=sizes, shifted=st.booleans())
def test_a_mask_is_made_only_where_it_hides_something(grid, window, shifted):
    mask = window_mask(fit_windows(grid, window, shifted=shifted))
    assert mask is None or not mask.all()
    assert mask is None or mask.diagonal(dim1=-2, dim2=-1).all()


class _Watch(nn.Module):
    """A block that changes nothing and keeps what it sees."""

    def forward(self, x, *, grid):
        self.seen = x
        return x


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_a_stage_shows_its_blocks_the_windows_in_turn_and_returns_the_map(grid, num_blocks):
    blocks = [_Watch() for _ in range(num_blocks)]
    windows = fit_windows((6, 8), WINDOW, shifted=False)
    stage = WindowStage(downsample=nn.Identity(), blocks=blocks, windows=windows)
    x = torch.arange(1.0, 1 + grid[0] * grid[1]).reshape(1, 1, *grid)

    assert torch.equal(stage(x), x)
    for index, block in enumerate(blocks):
        cells = window_cells(fit_windows(grid, WINDOW, shifted=index % 2 == 1))
        assert torch.equal(block.seen[0, :, 0], (cells + 1.0).flatten())


def test_a_stage_follows_its_module_to_another_type_and_keeps_its_indices():
    windows = fit_windows((6, 8), WINDOW, shifted=False)
    stage = WindowStage(downsample=nn.Identity(), blocks=[_Watch(), _Watch()], windows=windows).bfloat16()
    assert not stage.state_dict()
    x = torch.randn(2, 3, 6, 8).bfloat16()
    assert torch.equal(stage(x), x)
