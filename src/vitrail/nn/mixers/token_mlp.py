"""Mix tokens by an MLP over positions, shared by all channels (MLP-Mixer, Tolstikhin et al. 2021)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.masks import hide_padding
from vitrail.nn.mixers.contract import MixerShape, check_length
from vitrail.nn.positions import resize_map
from vitrail.nn.tokens import Grid, Mask, Tokens

Weights = tuple[Tensor, Tensor, Tensor]  # hidden tokens; tokens hidden; tokens


class TokenMLP(nn.Module):
    """Transform each channel's values at all positions: linear, GELU, linear.

    Weights belong to positions. Another grid is resampled to that of the weights, mixed, and resampled back,
    bilinearly and averaging where positions get fewer; prefix tokens keep their weights. A shorter sequence
    is zero-padded. Both are linear, so the weights are changed and not the tokens, which are many more.

    Paper: Tolstikhin et al. 2021, equation 1, "token-mixing".
    """

    def __init__(self, shape: MixerShape, hidden_dim: int) -> None:
        super().__init__()
        self.shape = shape
        self.expand = nn.Linear(shape.num_tokens, hidden_dim)
        self.activation = nn.GELU()
        self.contract = nn.Linear(hidden_dim, shape.num_tokens)

    def forward(self, x: Tokens, *, may_attend: Mask | None = None, grid: Grid | None = None) -> Tokens:
        """Return new tokens; padding counts as zeros.

        Raises:
            ConfigError: the mask differs by query or head.
            DataError: a sequence is longer than the weights allow.
        """
        expand, contract, contract_bias = self._fit_weights(x.shape[1], grid)
        # The weights are on the left, so that the tokens are read and written in their memory order.
        hidden = _mix(hide_padding(x, may_attend, layer="mlp"), expand, self.expand.bias)  # b hidden d
        return _mix(self.activation(hidden), contract, contract_bias)  # b tokens d

    def _fit_weights(self, num_tokens: int, grid: Grid | None) -> Weights:
        expand, contract, bias = self.expand.weight, self.contract.weight, self.contract.bias
        if grid is None or self.shape.grid is None:
            check_length(self.shape, num_tokens)
            return expand[:, :num_tokens], contract[:num_tokens], bias[:num_tokens]
        num_prefix = self.shape.num_prefix
        assert num_tokens - grid[0] * grid[1] == num_prefix, "another number of prefix tokens"
        if grid == self.shape.grid:
            return expand, contract, bias
        lengths = list(zip(self.shape.grid, grid, strict=True))
        reading = [_resampling(new, native, like=expand) for native, new in lengths]
        writing = [_resampling(native, new, like=expand).T for native, new in lengths]
        read = _combine_patches(expand.T, *reading, num_prefix=num_prefix).T  # hidden tokens
        written = torch.cat((contract, bias[:, None]), dim=1)  # native_tokens hidden+1
        written = _combine_patches(written, *writing, num_prefix=num_prefix)  # tokens hidden+1
        return read, written[:, :-1], written[:, -1]


def _mix(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply a linear layer to the token axis."""
    return torch.baddbmm(bias[:, None], weight.expand(x.shape[0], -1, -1), x)


def _combine_patches(
    weight: Float[Tensor, "native_tokens hidden"],
    by_row: Float[Tensor, "native_rows rows"],
    by_column: Float[Tensor, "native_columns columns"],
    *,
    num_prefix: int,
) -> Float[Tensor, "tokens hidden"]:
    """Resample the patches' weights to another grid; keep those of the prefix."""
    native = weight[num_prefix:].reshape(len(by_row), len(by_column), -1)  # native_rows native_columns hidden
    patches = torch.einsum("ri,cj,rch->ijh", by_row, by_column, native)
    return torch.cat((weight[:num_prefix], patches.flatten(0, 1)))


def _resampling(old: int, new: int, *, like: Tensor) -> Float[Tensor, "{new} {old}"]:
    """Return the matrix that resamples ``old`` positions to ``new`` ones."""
    positions = torch.eye(old, device=like.device)[None, None]  # an image whose columns are one position each
    resampled = resize_map(positions, (new, old), interpolation="bilinear", antialias=True)
    return resampled[0, 0].to(like.dtype)


# Tolstikhin et al. 2021, table 1: half the width
MIXERS = {"mlp": lambda shape: TokenMLP(shape, max(1, shape.dim // 2))}
