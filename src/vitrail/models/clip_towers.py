"""The two towers of CLIP: a Vision Transformer of its own, and a Transformer that reads texts.

Paper: Radford et al. 2021, section 2.4.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from vitrail.models.contract import ImageModelConfig, check_texts
from vitrail.models.skeletons import Isotropic
from vitrail.nn.activations import ACTIVATIONS, ActivationName
from vitrail.nn.attention import MultiHeadAttention
from vitrail.nn.blocks import MLP, PreNormBlock
from vitrail.nn.heads import PrefixPool
from vitrail.nn.linear import Linear
from vitrail.nn.masks import causal_mask
from vitrail.nn.patches import PatchEmbed
from vitrail.nn.positions import LearnedGridPositions
from vitrail.nn.sequence_positions import LearnedPositions

MLP_RATIO = 4  # of all published models
NORM_EPS = 1e-5  # published code


class CLIPImageConfig(ImageModelConfig):
    """Settings of CLIP's own Vision Transformer; its logits are the embedding."""

    family: ClassVar[str] = "clip"
    paper: ClassVar[str] = "Radford et al. 2021"
    position_policy: ClassVar[str] = "learned positions, interpolated (bicubic) to the image's grid"
    size_policy: ClassVar[str] = "completed with zeros below and to the right to whole patches"

    patch_size: int = Field(default=32, ge=1)
    """Pixels between neighbouring tokens."""
    width: int = Field(default=768, ge=1)
    """Width of a token."""
    depth: int = Field(default=12, ge=1)
    """Number of blocks."""
    num_heads: int = Field(default=12, ge=1)
    """Heads of attention; divides ``width``."""
    activation: ActivationName = "quick_gelu"
    """Between the two layers of each MLP."""

    @property
    def min_size(self) -> int:
        """One patch."""
        return self.patch_size

    def build(self) -> Isotropic:
        """Return a new tower.

        Paper: Radford et al. 2021, section 2.4: a Vision Transformer with one more norm before its blocks.
        """
        grid = (-(-self.image_size[0] // self.patch_size), -(-self.image_size[1] // self.patch_size))
        norm = partial(nn.LayerNorm, eps=NORM_EPS)
        tower = Isotropic(
            self,
            stem=PatchEmbed(self.num_channels, self.width, patch_size=self.patch_size, bias=False),
            positions=LearnedGridPositions(grid, self.width, num_prefix=1),
            num_prefix=1,
            input_norm=norm(self.width),
            blocks=_build_blocks(self.depth, self.width, self.num_heads, self.activation),
            norm=norm(self.width),
            pool=PrefixPool(),
            head=Linear(self.width, self.num_classes, bias=False),
        )
        _draw_blocks(tower.blocks, self.width)
        assert tower.prefix is not None
        assert isinstance(tower.positions, LearnedGridPositions)
        assert isinstance(tower.head, Linear)
        for parameter in (tower.prefix, tower.positions.table, tower.head.weight):
            nn.init.normal_(parameter, std=self.width**-0.5)  # published code
        return tower


class TextTower(nn.Module):
    """A Transformer that reads from left to right; the token that ends a text becomes its embedding.

    Args:
        vocabulary_size: subwords of the table.
        max_length: tokens of the longest text.
        width: of a token.
        depth: number of blocks.
        num_heads: heads of attention; divides ``width``.
        activation: between the two layers of each MLP.
        embedding_dim: width of the embedding.

    Paper: Radford et al. 2021, section 2.4.
    """

    def __init__(
        self,
        *,
        vocabulary_size: int,
        max_length: int,
        width: int,
        depth: int,
        num_heads: int,
        activation: ActivationName,
        embedding_dim: int,
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary_size, width)
        self.positions = LearnedPositions(max_length, width)
        self.blocks = nn.ModuleList(_build_blocks(depth, width, num_heads, activation))
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.projection = Linear(width, embedding_dim, bias=False)
        nn.init.normal_(self.table.weight, std=0.02)  # published code, as the following
        nn.init.normal_(self.positions.table, std=0.01)
        nn.init.normal_(self.projection.weight, std=width**-0.5)
        _draw_blocks(self.blocks, width)

    def forward(
        self, tokens: Int[Tensor, "texts tokens"], lengths: Int[Tensor, " texts"]
    ) -> Float[Tensor, "texts dim"]:
        """Return the embedding of each text, of any length as a vector."""
        check_texts(tokens, lengths)
        x = self.positions(self.table(tokens))  # b n d
        may_attend = causal_mask(tokens.shape[1], device=tokens.device)
        for block in self.blocks:
            x = block(x, may_attend=may_attend)
        last = x[torch.arange(x.shape[0], device=x.device), lengths - 1]  # b d
        return self.projection(self.norm(last))


def _build_blocks(depth: int, width: int, num_heads: int, activation: ActivationName) -> list[PreNormBlock]:
    return [
        PreNormBlock(
            width,
            mixer=MultiHeadAttention(width, num_heads),
            mlp=MLP(width, MLP_RATIO * width, activation=ACTIVATIONS[activation]),
            norm=partial(nn.LayerNorm, eps=NORM_EPS),
        )
        for _ in range(depth)
    ]


def _draw_blocks(blocks: nn.ModuleList, width: int) -> None:
    """Draw the matrices of all blocks, those that end a branch smaller the more blocks there are.

    Source: published code of Radford et al. 2021, which does so in the text tower.
    """
    inner, last = width**-0.5, width**-0.5 * (2 * len(blocks)) ** -0.5
    deviations = {
        "mixer.qkv": inner,
        "mixer.projection": last,
        "mlp.expand": (2 * width) ** -0.5,
        "mlp.contract": last,
    }
    for block in blocks:
        for name, deviation in deviations.items():
            layer = block.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)
