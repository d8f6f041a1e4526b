import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from vitrail.interpret import record_attention
from vitrail.nn.relative import ContinuousRelativeBias, GridRelativeBias
from vitrail.nn.windows import (
    CosineWindowAttention,
    WindowAttention,
    WindowStage,
    fit_windows,
    grid_order,
    window_mask,
    window_order,
    window_positions,
)

WINDOW = (3, 4)
# Whole windows; windows to complete in both axes; in one; a covered axis; a single window; a single patch.
GRIDS = [(6, 8), (7, 9), (3, 10), (2, 9), (3, 4), (2, 3), (1, 1), (4, 5)]

sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))


@given(grid=sizes, window=sizes, shifted=st.booleans())
def test_every_patch_stands_in_one_place(grid, window, shifted):
    windows = fit_windows(grid, window, shifted=shifted)
    order, places = window_order(windows), grid_order(windows)
    patches = window_positions(windows)
    assert torch.equal(order[places], torch.arange(len(order)))
    assert patches.shape == (windows.num_windows, windows.num_tokens)
    assert sorted(patches[patches >= 0].tolist()) == list(range(grid[0] * grid[1]))


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
        patches = window_positions(fit_windows(grid, WINDOW, shifted=index % 2 == 1))
        assert torch.equal(block.seen[0, :, 0], (patches + 1.0).flatten())


def test_a_stage_follows_its_module_to_another_type_and_keeps_its_indices():
    windows = fit_windows((6, 8), WINDOW, shifted=False)
    stage = WindowStage(downsample=nn.Identity(), blocks=[_Watch(), _Watch()], windows=windows).bfloat16()
    assert not stage.state_dict()
    x = torch.randn(2, 3, 6, 8).bfloat16()
    assert torch.equal(stage(x), x)


DIM, HEADS = 6, 2
LAYERS = {
    "scaled": (WindowAttention, GridRelativeBias),
    "cosine": (CosineWindowAttention, ContinuousRelativeBias),
}


def _layer(kind: str, *, shifted: bool, native: tuple[int, int] = (6, 8)) -> nn.Module:
    attention, bias = LAYERS[kind]
    windows = fit_windows(native, WINDOW, shifted=shifted)
    layer = attention(DIM, HEADS, windows=windows, shifted=shifted, bias=bias(windows.size, HEADS))
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.7)
    return layer.eval()


def _in_windows(x: torch.Tensor, layer: nn.Module, *, filling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the patches of a map window by window, and where each patch then stands."""
    grid = (x.shape[1], x.shape[2])
    windows = fit_windows(grid, layer.windows.size, shifted=layer.shifted)
    below, right = windows.padding
    completed = F.pad(x, (0, 0, 0, right, 0, below), value=filling).flatten(1, 2)
    places = grid_order(windows).reshape(windows.completed)[: grid[0], : grid[1]].flatten()
    return completed[:, window_order(windows)], places


def _explicit(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights and results of attention over the whole grid, masked by where windows begin."""
    batch, rows, columns = x.shape[:3]
    down, right = (
        axis.flatten() for axis in torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    )
    window = layer.windows.size
    shift = [
        size // 2 if layer.shifted and length > size else 0
        for length, size in zip((rows, columns), window, strict=True)
    ]
    together = torch.ones(rows * columns, rows * columns, dtype=torch.bool)
    for place, size, by in zip((down, right), window, shift, strict=True):
        number = (place - by).div(size, rounding_mode="floor")  # windows begin at by, by + size, ...
        together &= number[:, None] == number
    below, aside = down[:, None] - down, right[:, None] - right
    if not isinstance(layer, CosineWindowAttention):
        qkv = layer.qkv(x.flatten(1, 2))
        table = layer.relative_bias.table.reshape(2 * window[0] - 1, 2 * window[1] - 1, HEADS)
        near = [
            offset.clamp(1 - size, size - 1) + size - 1
            for offset, size in zip((below, aside), window, strict=True)
        ]
        bias, scale = table[near[0], near[1]].permute(2, 0, 1), (DIM // HEADS) ** -0.5
    else:
        zeros = torch.zeros(DIM)
        qkv = F.linear(
            x.flatten(1, 2), layer.qkv.weight, torch.cat((layer.query_bias, zeros, layer.value_bias))
        )
        offsets = [8 * offset / (size - 1) for offset, size in zip((below, aside), window, strict=True)]
        logarithms = torch.stack([o.sign() * (1 + o.abs()).log2() / 3 for o in offsets], dim=-1)
        hidden = layer.relative_bias.expand(logarithms).relu()
        bias, scale = 16 * layer.relative_bias.contract(hidden).sigmoid().permute(2, 0, 1), 1.0
    query, key, value = qkv.reshape(batch, -1, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
    if isinstance(layer, CosineWindowAttention):
        query = F.normalize(query, dim=-1) * layer.log_scale.clamp(max=math.log(100)).exp()[:, None, None]
        key = F.normalize(key, dim=-1)
    scores = scale * query @ key.transpose(-2, -1) + bias
    weights = scores.masked_fill(~together, -math.inf).softmax(dim=-1)
    return weights, layer.projection((weights @ value).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("grid", GRIDS)
def test_windows_equal_masked_attention_over_the_whole_grid(kind, shifted, grid):
    layer, x = _layer(kind, shifted=shifted), torch.randn(2, *grid, DIM)
    tokens, places = _in_windows(x, layer, filling=1e3)  # would dominate what attends to it

    with torch.no_grad(), record_attention(layer) as maps:
        out = layer(tokens, grid=grid)
    weights, expected = _explicit(layer, x)

    torch.testing.assert_close(out[:, places], expected, rtol=1e-4, atol=1e-5)
    assert maps[0].grid == grid
    torch.testing.assert_close(maps[0].weights, weights, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(maps[0].weights.sum(-1), torch.ones(2, HEADS, grid[0] * grid[1]))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("shifted", [False, True])
def test_recorded_rows_are_those_of_the_whole_map(kind, shifted):
    layer, grid, rows = _layer(kind, shifted=shifted), (7, 9), [62, 0, 8, 30, -2]
    tokens, _ = _in_windows(torch.randn(2, *grid, DIM), layer, filling=5.0)
    with torch.no_grad(), record_attention(layer) as whole:
        layer(tokens, grid=grid)
    with torch.no_grad(), record_attention(layer, queries=rows) as some:
        layer(tokens, grid=grid)
    torch.testing.assert_close(some[0].weights, whole[0].weights[:, :, rows])


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_with_completed_windows_are_finite_and_pass_over_what_completes_them(kind):
    layer, grid = _layer(kind, shifted=True), (7, 9)
    tokens, places = _in_windows(torch.randn(2, *grid, DIM), layer, filling=0.0)
    tokens.requires_grad_()
    layer(tokens, grid=grid)[:, places].square().sum().backward()
    is_patch = torch.zeros(tokens.shape[1], dtype=torch.bool).index_fill(0, places, True)
    assert tokens.grad[:, ~is_patch].abs().max() == 0
    assert all(tokens.grad[:, place].abs().max() > 0 for place in places)
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_the_scale_of_cosines_ends_at_one_hundred():
    layer, tokens = _layer("cosine", shifted=False), torch.randn(2, 12, DIM)
    results = []
    for scale in (100.0, 150.0, 99.0):
        nn.init.constant_(layer.log_scale, math.log(scale))
        results.append(layer(tokens, grid=(3, 4)))
    torch.testing.assert_close(results[1], results[0])
    assert not torch.allclose(results[2], results[0])
