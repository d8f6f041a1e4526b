"""Residual blocks around a token mixer and an MLP, and the small layers in them.

The mixer is passed in; any module with ``forward(x, *, may_attend=None, grid=None)`` will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.linear import LayerScale, Linear
from vitrail.nn.tokens import Grid, Mask, Tokens

NormFactory = Callable[[int], nn.Module]
NormPlace = Literal["pre", "post", "branch_post"]


class Dropout(nn.Module):
    """Dropout.

    Paper: Srivastava et al. 2014, scaled in training instead of in testing.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        assert 0 <= probability < 1, f"{probability} is not a probability below one"
        self.probability = probability

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if self.probability == 0 or not self.training:
            return x
        return F.dropout(x, self.probability)

    def extra_repr(self) -> str:
        return f"probability={self.probability}"


class MLP(nn.Module):
    """Linear, activation, linear on each token.

    Args:
        out_dim: None keeps ``dim``.
        dropout: of hidden values.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        out_dim: int | None = None,
        activation: Callable[[], nn.Module] = nn.GELU,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.expand = Linear(dim, hidden_dim)
        self.activation = activation()
        self.dropout = Dropout(dropout)
        self.contract = Linear(hidden_dim, dim if out_dim is None else out_dim)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch out_dim"]:
        return self.contract(self.dropout(self.activation(self.expand(x))))


class TokenBatchNorm(nn.BatchNorm1d):
    """Normalise each channel over all tokens of a batch, padding included; by running averages in evaluation.

    Paper: Ioffe and Szegedy 2015. What it costs sentences: Shen et al. 2020 (PowerNorm), section 3.
    """

    def forward(self, x: Float[Tensor, "*tokens dim"]) -> Float[Tensor, "*tokens dim"]:
        return super().forward(x.flatten(0, -2)).view_as(x)


class DropPath(Dropout):
    """Stochastic depth: dropout of a whole branch for random samples.

    Draws one number per sample from the default generator of the tensor's device, and none if the probability
    is zero or in evaluation mode.

    Paper: Huang et al. 2016, equation 2, scaled in training instead of in testing.
    """

    @property
    def is_idle(self) -> bool:
        """Whether this is the identity."""
        return not self.training or self.probability == 0

    def forward(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        if self.is_idle:
            return x
        keep = 1 - self.probability
        stays = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device) < keep
        return x * (stays / keep).to(x.dtype)


def drop_path_rates(last: float, depth: int) -> list[float]:
    """Return the stochastic-depth rate of each block, linear from 0 (Huang et al. 2016, section 3)."""
    return [last * index / max(depth - 1, 1) for index in range(depth)]


def drop_path_stages(last: float, depths: Sequence[int]) -> list[list[float]]:
    """Return ``drop_path_rates`` of the blocks of each stage."""
    rates = iter(drop_path_rates(last, sum(depths)))
    return [list(islice(rates, depth)) for depth in depths]


class Block(nn.Module):
    """A token-mixing branch and an MLP branch, both residual and with a norm.

    The norm stands before each branch, ``x + branch(norm(x))`` (Dosovitskiy et al. 2021, equations 2 and 3);
    after the sum, ``norm(x + branch(x))`` (Vaswani et al. 2017, section 3.1); or at the end of the branch,
    ``x + norm(branch(x))``, where the sum is never normalised (Liu et al. 2022, Swin V2, section 3.2).

    Args:
        norm_place: ``pre``, ``post`` or ``branch_post``, in the order above.
        layer_scale: initial LayerScale factor of each branch; None for no LayerScale.
    """

    def __init__(
        self,
        dim: int,
        *,
        mixer: nn.Module,
        mlp: nn.Module,
        norm: NormFactory = nn.LayerNorm,
        norm_place: NormPlace = "pre",
        dropout: float = 0.0,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm_place = norm_place
        # Parameters stand in the order in which they are used.
        if norm_place == "pre":
            self.mixer_norm, self.mixer = norm(dim), mixer
        else:
            self.mixer, self.mixer_norm = mixer, norm(dim)
        self.mixer_end = BranchEnd(dim, dropout=dropout, layer_scale=layer_scale, drop_path=drop_path)
        if norm_place == "pre":
            self.mlp_norm, self.mlp = norm(dim), mlp
        else:
            self.mlp, self.mlp_norm = mlp, norm(dim)
        self.mlp_end = BranchEnd(dim, dropout=dropout, layer_scale=layer_scale, drop_path=drop_path)

    def forward(self, x: Tokens, *, may_attend: Mask | None = None, grid: Grid | None = None) -> Tokens:
        if self.norm_place == "pre":
            x = x + self.mixer_end(self.mixer(self.mixer_norm(x), may_attend=may_attend, grid=grid))
            return x + self.mlp_end(self.mlp(self.mlp_norm(x)))
        if self.norm_place == "post":
            x = self.mixer_norm(x + self.mixer_end(self.mixer(x, may_attend=may_attend, grid=grid)))
            return self.mlp_norm(x + self.mlp_end(self.mlp(x)))
        x = x + self.mixer_end(self.mixer_norm(self.mixer(x, may_attend=may_attend, grid=grid)))
        return x + self.mlp_end(self.mlp_norm(self.mlp(x)))


class BranchEnd(nn.Module):
    """Dropout, LayerScale and stochastic depth at the end of a branch.

    Args:
        layer_scale: initial factor; None for no LayerScale.
    """

    def __init__(self, dim: int, *, dropout: float, layer_scale: float | None, drop_path: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.scale = nn.Identity() if layer_scale is None else LayerScale(dim, initial=layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tokens) -> Tokens:
        return self.drop_path(self.scale(self.dropout(x)))
