"""Token merging: after each attention, similar tokens are averaged, so that later layers have fewer.

Patches are the tokens of the image; prefix tokens, such as a class token, are never merged.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.nn.attention import Attention
from vitrail.nn.blocks import Block
from vitrail.nn.tap import TokenGrids
from vitrail.nn.tokens import Grid, Tokens


class Matching(NamedTuple):
    """Bipartite matching: some patches of the first set are merged, each into one of the second."""

    kept: Int[Tensor, "batch kept"]
    """Patches of the first set that are kept, in order."""
    merged: Int[Tensor, "batch merged"]
    """Patches of the first set that are merged."""
    partner: Int[Tensor, "batch merged"]
    """The patch of the second set that each is merged into."""


class Merged(NamedTuple):
    """Bookkeeping of merged tokens."""

    sizes: Float[Tensor, "batch tokens"]
    """Number of original tokens in each one."""
    owner: Int[Tensor, "batch first_tokens"]
    """The token that each original token is part of."""


def match_tokens(keys: Float[Tensor, "batch patches dim"], num_merged: int) -> Matching:
    """Pair each patch of even index with its most similar one of odd index; keep the most similar pairs.

    Several pairs may share a patch of odd index.

    Args:
        keys: of attention, the mean over heads; their cosine is the similarity.
        num_merged: pairs to keep; at most half of the patches.

    Paper: Bolya et al. 2023 (Token Merging), section 3, "bipartite soft matching".

    Example:
        >>> keys = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.1, 1.0]]])
        >>> match_tokens(keys, 1).merged.tolist(), match_tokens(keys, 1).partner.tolist()
        ([[1]], [[0]])
    """
    keys = F.normalize(keys.float(), dim=-1)
    similarity, partner = (keys[:, ::2] @ keys[:, 1::2].transpose(1, 2)).max(dim=-1)  # b first
    order = similarity.argsort(dim=-1, descending=True, stable=True)
    merged = order[:, :num_merged]
    return Matching(order[:, num_merged:].sort(dim=-1).values, merged, partner.gather(1, merged))


def average_matched(
    x: Tokens, state: Merged, matching: Matching, *, num_prefix: int
) -> tuple[Float[Tensor, "batch fewer dim"], Merged]:
    """Average matched tokens, weighted by their sizes.

    Returns:
        The prefix tokens, the patches kept of the first set, and the second set; their new state.

    Paper: Bolya et al. 2023, section 3, "tracking token size".
    """
    sizes = state.sizes[..., None].to(x.dtype)  # b n 1
    first, second = x[:, num_prefix::2], x[:, num_prefix + 1 :: 2]
    first_sizes, second_sizes = sizes[:, num_prefix::2], sizes[:, num_prefix + 1 :: 2]
    weight = _rows(first_sizes, matching.merged)
    new_sizes = _add_rows(second_sizes, matching.partner, weight)
    joined = (
        _add_rows(second * second_sizes, matching.partner, _rows(first, matching.merged) * weight) / new_sizes
    )
    tokens = torch.cat((x[:, :num_prefix], _rows(first, matching.kept), joined), dim=1)
    kept_sizes = _rows(first_sizes, matching.kept)
    all_sizes = torch.cat((sizes[:, :num_prefix], kept_sizes, new_sizes), dim=1)[..., 0]
    positions = _new_positions(x.shape[1], matching, num_prefix)
    return tokens, Merged(all_sizes.to(state.sizes.dtype), positions.gather(1, state.owner))


def begin_merging(x: Tokens) -> Merged:
    """Return the state of unmerged tokens."""
    batch, tokens = x.shape[:2]
    owner = torch.arange(tokens, device=x.device).expand(batch, -1)
    return Merged(torch.ones(batch, tokens, device=x.device), owner)


def restore_tokens(x: Tokens, state: Merged) -> Float[Tensor, "batch first_tokens dim"]:
    """Return, for each original token, the token that it is part of."""
    return _rows(x, state.owner)


class TokenMergingBlock(nn.Module):
    """A pre-norm block that merges tokens between attention and MLP; it shares the block's layers.

    Recorded attention is that of all original tokens, where merged ones share queries, keys and values: the
    same average, as a token's size counts in the softmax. So maps are of the patches, and relevance can be
    followed through them.

    Args:
        block: its mixer is multi-head attention without positions of its own.
        num_merged: tokens merged; at most half of the patches there are.

    Paper: Bolya et al. 2023, sections 3 and 4.1; "proportional attention": equation 1.
    """

    def __init__(self, block: Block, *, num_merged: int, num_prefix: int) -> None:
        super().__init__()
        assert isinstance(block.mixer, Attention), "tokens are compared by the keys of attention"
        assert block.mixer.positions is None, "merged tokens have no single position"
        self.num_merged, self.num_prefix = num_merged, num_prefix
        self.mixer_norm, self.mixer, self.mixer_end = block.mixer_norm, block.mixer, block.mixer_end
        self.mlp_norm, self.mlp, self.mlp_end = block.mlp_norm, block.mlp, block.mlp_end

    def forward(
        self, x: Tokens, state: Merged, *, grid: Grid
    ) -> tuple[Float[Tensor, "batch fewer dim"], Merged]:
        """Return fewer tokens and their state; ``grid`` is that of the original patches."""
        mixed, keys = self._attend(self.mixer_norm(x), state, grid)
        x = x + self.mixer_end(mixed)
        num_merged = min(self.num_merged, (x.shape[1] - self.num_prefix) // 2)
        if num_merged:
            matching = match_tokens(keys[:, self.num_prefix :], num_merged)
            x, state = average_matched(x, state, matching, num_prefix=self.num_prefix)
        return x + self.mlp_end(self.mlp(self.mlp_norm(x))), state

    def _attend(self, x: Tensor, state: Merged, grid: Grid) -> tuple[Tensor, Tensor]:
        """Return attention's addition to each token, and the token's key, the mean over heads."""
        layer = self.mixer
        query, key, value = layer.split_heads(x)
        if layer.tap is None:
            is_merged = state.owner.shape[1] > x.shape[1]
            # The log of a size as a bias counts a token in the softmax as often as its size.
            bias = state.sizes.log()[:, None, None, :] if is_merged else None
            out = layer.average(query, key, value, score=layer.score, bias=bias)
        else:
            parts = (part.gather(2, _heads_index(part, state)) for part in (query, key, value))
            grids = TokenGrids(queries=grid, keys=grid)
            of_first = layer.average(*parts, score=layer.score, grids=grids)
            sums = torch.zeros_like(query).scatter_add(2, _heads_index(of_first, state), of_first)
            out = sums / state.sizes[:, None, :, None].to(sums.dtype)
        return layer.projection(out.transpose(1, 2).flatten(2)), key.mean(dim=1)

    def extra_repr(self) -> str:
        return f"num_merged={self.num_merged}"


def _heads_index(part: Tensor, state: Merged) -> Int[Tensor, "batch heads first_tokens dim"]:
    return state.owner[:, None, :, None].expand(-1, part.shape[1], -1, part.shape[-1])


def _rows(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


def _add_rows(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    return x.scatter_add(1, index[..., None].expand(-1, -1, x.shape[-1]), rows)


def _new_positions(num_tokens: int, matching: Matching, num_prefix: int) -> Int[Tensor, "batch tokens"]:
    """Return the new index of each token after merging."""
    batch, num_kept = matching.kept.shape
    device = matching.kept.device
    positions = torch.arange(num_tokens, device=device).repeat(batch, 1)
    num_first = num_kept + matching.merged.shape[1]
    first = positions.new_zeros(batch, num_first)
    first = first.scatter(
        1, matching.kept, torch.arange(num_kept, device=device).expand(batch, -1) + num_prefix
    )
    first = first.scatter(1, matching.merged, matching.partner + num_prefix + num_kept)
    positions[:, num_prefix::2] = first
    num_second = num_tokens - num_prefix - num_first
    positions[:, num_prefix + 1 :: 2] = torch.arange(num_second, device=device) + num_prefix + num_kept
    return positions
