"""Residual blocks around a token mixer and an MLP, and the small layers that they are made of.

A block is given its mixer built; any module with ``forward(x, *, may_attend=None, grid=None)`` will do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.nn.linear import Linear

Mask = Bool[Tensor, "#batch #heads #queries #keys"]
NormFactory = Callable[[int], nn.Module]
NormPlace = Literal["pre", "post", "branch_post"]


ActivationName = Literal["gelu", "quick_gelu", "relu", "silu"]

QUICK_GELU_SLOPE = 1.702  # Hendrycks and Gimpel 2016, section 2


class QuickGELU(nn.Module):
    """Apply ``x sigmoid(1.702 x)``.

    Paper: Hendrycks and Gimpel 2016, section 2, the approximation by a sigmoid, which CLIP was trained with.
    """

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        return x * torch.sigmoid(QUICK_GELU_SLOPE * x)


ACTIVATIONS: dict[ActivationName, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "quick_gelu": QuickGELU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
}
"""What makes each activation by its name."""


class Dropout(nn.Module):
    """In training, set values to zero at random and scale up the others; the identity otherwise.

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
    """Transform each token alone: linear, activation, linear.

    Args:
        out_dim: width of the new tokens; None keeps ``dim``.
        activation: makes what stands between the two layers.
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


class LayerScale(nn.Module):
    """Multiply each channel by a learned factor that starts small.

    Args:
        initial: first value of the factors.

    Paper: Touvron et al. 2021 (CaiT), equation 3.
    """

    def __init__(self, dim: int, *, initial: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((dim,), initial))

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        return x * self.factor.to(x.dtype)


class DropPath(nn.Module):
    """In training, replace a sample's whole branch by zeros, and scale up those that stay.

    Draws one number for each sample from the default generator of the tensor's device, and none where
    the probability is zero or the module is in evaluation mode.

    Paper: Huang et al. 2016 (stochastic depth), equation 2, scaled in training instead of in testing.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        assert 0 <= probability < 1, f"{probability} is not a probability below one"
        self.probability = probability

    @property
    def is_idle(self) -> bool:
        """Whether every branch is handed on as it is."""
        return not self.training or self.probability == 0

    def forward(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        if self.is_idle:
            return x
        keep = 1 - self.probability
        stays = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device) < keep
        return x * (stays / keep).to(x.dtype)

    def extra_repr(self) -> str:
        return f"probability={self.probability}"


class Block(nn.Module):
    """A branch that mixes tokens and a branch that transforms each, both residual and with a norm.

    The norm stands before each branch, ``x + branch(norm(x))`` (Dosovitskiy et al. 2021, equations 2 and 3);
    after the sum, ``norm(x + branch(x))`` (Vaswani et al. 2017, section 3.1); or at the end of the branch,
    ``x + norm(branch(x))``, where the sum is never normalised (Liu et al. 2022, Swin V2, section 3.2).

    Args:
        norm_place: ``pre``, ``post`` or ``branch_post``, in the order above.
        layer_scale: first value of each branch's ``LayerScale``; None leaves it out.
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

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        *,
        may_attend: Mask | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        if self.norm_place == "pre":
            x = x + self.mixer_end(self.mixer(self.mixer_norm(x), may_attend=may_attend, grid=grid))
            return x + self.mlp_end(self.mlp(self.mlp_norm(x)))
        if self.norm_place == "post":
            x = self.mixer_norm(x + self.mixer_end(self.mixer(x, may_attend=may_attend, grid=grid)))
            return self.mlp_norm(x + self.mlp_end(self.mlp(x)))
        x = x + self.mixer_end(self.mixer_norm(self.mixer(x, may_attend=may_attend, grid=grid)))
        return x + self.mlp_end(self.mlp_norm(self.mlp(x)))


class BranchEnd(nn.Module):
    """What a branch goes through before it is added: dropout, layer scale, drop path.

    Args:
        layer_scale: first value of the channels' factors; None leaves them out.
    """

    def __init__(self, dim: int, *, dropout: float, layer_scale: float | None, drop_path: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.scale = nn.Identity() if layer_scale is None else LayerScale(dim, initial=layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        return self.drop_path(self.scale(self.dropout(x)))
