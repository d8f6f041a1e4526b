"""Attention inside windows, stitched back to the grid of the whole image: pure functions of indices."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

Cells = Int[Tensor, "windows tokens"]


def stitch_windows(
    weights: Float[Tensor, "_ heads _ keys"],
    windows: tuple[Cells, Cells],
    num_cells: int,
    rows: list[int] | None = None,
) -> Float[Tensor, "batch heads _ cells"]:
    """Return each cell's weights over all cells of the image, zero outside its window.

    Args:
        weights: of all windows of all images, or, with ``rows``, as ``rows_of_windows`` prepared them: one
            window with one query for each wanted row of each image.
        windows: the cell that each query and each key of a window is, -1 for padding.
        num_cells: cells of the image.
        rows: the cells whose weights these are; None for all of them.
    """
    query_cells, key_cells = windows
    num_windows, heads = len(query_cells), weights.shape[1]
    if rows is None:
        batch = len(weights) // num_windows
        weights = weights.reshape(batch, num_windows, *weights.shape[1:])  # b w h q k
        of_window, of_query = torch.nonzero(query_cells >= 0, as_tuple=True)
        picked = weights[:, of_window, :, of_query]  # cells b h k, as indices apart come first
        targets = query_cells[of_window, of_query]
        keys = key_cells[of_window]  # cells k
    else:
        of_window = _window_of_rows(rows, query_cells)[0]
        batch = len(weights) // len(rows)
        picked = weights.reshape(batch, len(rows), heads, -1).movedim(1, 0)  # rows b h k
        targets = torch.arange(len(rows), device=weights.device)
        keys = key_cells[of_window]
    # One cell more takes what padding keys got, which is nothing. A whole map is large, so it is made once.
    assert rows is not None or len(targets) == num_cells, "each cell asks in one window"
    order = targets.argsort()
    places = keys.where(keys >= 0, num_cells)[order][:, None, None, :]
    stitched = weights.new_zeros(len(order), batch, heads, num_cells + 1)
    stitched.scatter_add_(-1, places.expand_as(picked), picked[order])
    return stitched[..., :num_cells].permute(1, 2, 0, 3)  # b h rows cells


def rows_of_windows(
    rows: list[int],
    windows: tuple[Cells, Cells],
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    may_attend: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Keep, of the attention inside windows, one query and its window's keys for each wanted cell.

    The windows stand in the batch, window by window within an image, and so does what is returned: the
    wanted rows of the first image, then those of the next.

    Args:
        rows: wanted cells of the grid.
        windows: the cell that each query and each key of a window is, -1 for padding.
        query: queries of all windows of all images.
        key: their keys.
        bias: added to the scores; its first axis is 1, the windows of one image, or those of all.
        may_attend: where a query may look; its first axis likewise.
    """
    of_window, of_query = _window_of_rows(rows, windows[0])
    num_windows = len(windows[0])
    batch = len(query) // num_windows

    def pick(tensor: Tensor, *, with_query: bool) -> Tensor:
        if len(tensor) == 1:
            chosen = tensor.expand(batch * len(rows), *tensor.shape[1:])
        else:
            images = tensor.reshape(-1, num_windows, *tensor.shape[1:])[:, of_window]  # b or 1, rows, ...
            chosen = images.expand(batch, *images.shape[1:]).flatten(0, 1)
        if not with_query or chosen.shape[-2] == 1:
            return chosen
        index = of_query.repeat(batch)[:, None, None, None].expand(-1, chosen.shape[1], 1, chosen.shape[-1])
        return chosen.gather(-2, index)  # b*rows h 1 k

    return (
        pick(query, with_query=True),
        pick(key, with_query=False),
        None if bias is None else pick(bias, with_query=True),
        None if may_attend is None else pick(may_attend, with_query=True),
    )


def _window_of_rows(rows: list[int], query_cells: Cells) -> tuple[Tensor, Tensor]:
    """Return the window of each wanted cell, and which of its tokens it is."""
    flat = torch.full((int(query_cells.max()) + 1,), -1, device=query_cells.device)
    place = torch.arange(query_cells.numel(), device=query_cells.device)
    real = query_cells.flatten() >= 0
    flat[query_cells.flatten()[real]] = place[real]
    at = flat[torch.tensor(rows, device=flat.device)]
    return at // query_cells.shape[1], at % query_cells.shape[1]
