"""Mix tokens by the mean of their neighbours, without a weight (PoolFormer, Yu et al. 2022)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.masks import hide_padding, neighbourhood_mask, read_key_mask
from vitrail.nn.mixers.contract import locate
from vitrail.nn.tap import Tap, one_grid
from vitrail.nn.tokens import Grid, Mask, Tokens

POOL_SIZE = 3  # Yu et al. 2022, section 3.2


class PoolingMixer(nn.Module):
    """Return the mean of each token's neighbourhood minus the token, which the residual sum adds again.

    The neighbourhood is 3x3 patches of an image, or three tokens of a sequence, without borders and padding.
    Prefix tokens receive the mean of all tokens, and no patch sees them.

    Paper: Yu et al. 2022 (MetaFormer), equation 4.
    """

    tap: Tap | None

    def __init__(self) -> None:
        super().__init__()
        self.tap = None

    def forward(self, x: Tokens, *, may_attend: Mask | None = None, grid: Grid | None = None) -> Tokens:
        values = hide_padding(x, may_attend, layer="pooling")
        is_there = None
        if may_attend is not None:
            is_there = read_key_mask(may_attend, layer="pooling")[..., None].to(x.dtype)  # b or 1, n 1
        num_prefix, shape = locate(x.shape[1], grid)
        if self.tap is not None:
            weights = _mixing_matrix(num_prefix, shape, x, is_there)
            self.tap.take_weights(weights, kind="mixing", grids=one_grid(grid))
        mean = _mean_of_neighbours(values[:, num_prefix:], shape)
        if is_there is not None:
            # Both means are over the same neighbours, so their ratio is the mean over those that are not
            # padding.
            share = _mean_of_neighbours(is_there[:, num_prefix:], shape)
            mean = mean / share.clamp_min(POOL_SIZE**-2)
        if num_prefix:
            of_all = values.mean(dim=1, keepdim=True)
            if is_there is not None:
                of_all = values.sum(dim=1, keepdim=True) / is_there.sum(dim=1, keepdim=True).clamp_min(1)
            mean = torch.cat((of_all.expand(-1, num_prefix, -1), mean), dim=1)
        return mean - x


def _mean_of_neighbours(x: Tensor, grid: tuple[int, int]) -> Tensor:
    image = x.transpose(1, 2).reshape(x.shape[0], -1, *grid)  # b d rows columns
    means = F.avg_pool2d(image, POOL_SIZE, stride=1, padding=POOL_SIZE // 2, count_include_pad=False)
    return means.flatten(2).transpose(1, 2)


def _mixing_matrix(
    num_prefix: int, grid: tuple[int, int], x: Tensor, is_there: Tensor | None
) -> Float[Tensor, "batch 1 tokens tokens"]:
    near = neighbourhood_mask(grid, POOL_SIZE // 2, num_prefix=num_prefix, device=x.device).to(x.dtype)
    near[..., num_prefix:, :num_prefix] = 0  # no patch sees the prefix
    if is_there is not None:
        near = near * is_there[..., 0][:, None, None]
    weights = near / near.sum(-1, keepdim=True).clamp_min(1)
    return (weights - torch.eye(x.shape[1], dtype=x.dtype, device=x.device)).expand(x.shape[0], 1, -1, -1)


MIXERS = {"pooling": lambda shape: PoolingMixer()}
