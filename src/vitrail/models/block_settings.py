"""What may vary inside the blocks of a Transformer, of images and of sentences alike."""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field, field_validator
from torch import nn

from vitrail.core.config import Config
from vitrail.nn.blocks import NormFactory, TokenBatchNorm
from vitrail.nn.mixers import MIXERS

CONVOLUTIONS = ("light_convolution", "dynamic_convolution")


class MixerSettings(Config):
    """What mixes the tokens of a block."""

    mixer: str = "attention"
    """Token mixer of each block, of a translator those of the encoder; a file of ``vitrail/nn/mixers``."""

    @field_validator("mixer")
    @classmethod
    def _check_mixer_name(cls, name: str) -> str:
        if name != "attention":  # known without searching the folder
            MIXERS[name]  # raises for an unknown name, with the nearest one
        return name


class BlockSettings(MixerSettings):
    """Settings of blocks; the defaults are the papers'."""

    head_dim: int | None = Field(default=None, ge=1)
    """Width of a head's queries and keys (d_K); null for an equal share of ``width``."""
    value_dim: int | None = Field(default=None, ge=1)
    """Width of a head's values (d_V); null for an equal share of ``width``."""
    kernel_sizes: tuple[int, ...] = ()
    """Odd kernel sizes of light and dynamic convolution, the first block's first; the last one is that of all
    further blocks. Wu et al. 2019: [3, 7, 15, 31]. Empty for 15 in sentences and 7 in images."""
    kernel_dropout: float = Field(default=0.0, ge=0, lt=1)
    """DropConnect: dropout probability of the kernel weights of light and dynamic convolution."""
    norm_layer: Literal["layer", "batch"] = "layer"
    """Norm of the blocks: layer norm, or batch norm over all tokens of a batch."""

    @field_validator("kernel_sizes")
    @classmethod
    def _check_kernel_sizes(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if any(size < 1 or size % 2 == 0 for size in sizes):
            raise ValueError(f"kernel_sizes are odd and greater than zero, not {list(sizes)}")
        return sizes

    def kernel_size(self, block: int) -> int | None:
        """Return the kernel size of a block, counted from 0; None for the mixer's own."""
        return self.kernel_sizes[min(block, len(self.kernel_sizes) - 1)] if self.kernel_sizes else None

    def make_norm(self, eps: float) -> NormFactory:
        return partial({"layer": nn.LayerNorm, "batch": TokenBatchNorm}[self.norm_layer], eps=eps)


def check_blocks(config: BlockSettings, width: int, num_heads: int, mixers: tuple[str, ...]) -> int:
    """Check a model's settings together; return the width of a head's queries and keys.

    Raises:
        ValueError: two of them exclude each other.
    """
    shares = config.head_dim is None or config.value_dim is None or set(mixers) != {"attention"}
    if shares and width % num_heads:
        raise ValueError(f"num_heads {num_heads} does not divide width {width}")
    if (config.kernel_sizes or config.kernel_dropout) and not {*mixers} & {*CONVOLUTIONS}:
        needed = " or ".join(map(repr, CONVOLUTIONS))
        raise ValueError(f"kernel_sizes and kernel_dropout need mixer {needed}, not {mixers[0]!r}")
    return config.head_dim or width // num_heads


def split_positions(positions: str) -> tuple[str, str]:
    """Return the positions that are added to the tokens and those inside attention, each "none" without.

    >>> split_positions("learned+rotary"), split_positions("sinusoidal"), split_positions("rotary")
    (('learned', 'rotary'), ('sinusoidal', 'none'), ('none', 'rotary'))
    """
    names = positions.split("+")
    is_added = names[0].startswith(("learned", "sinusoidal"))
    return names[0] if is_added else "none", "none" if is_added and len(names) == 1 else names[-1]
