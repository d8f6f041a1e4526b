"""A Vision Transformer that merges similar tokens while it runs: faster, with the same weights.

Paper: Bolya et al. 2023 (Token Merging: Your ViT but Faster).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from vitrail.core.errors import ConfigError, check_name
from vitrail.models.ablations import VariedViT
from vitrail.models.pyramid import Plain
from vitrail.models.vit import ViT
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import Block
from vitrail.nn.token_merging import Merged, TokenMergingBlock, begin_merging, restore_tokens
from vitrail.nn.tokens import Grid, Images, Logits, Tokens

SCHEDULES = ("constant", "decreasing")


def merge_tokens(model: nn.Module, num_merged: int, *, schedule: str = "constant") -> nn.Module:
    """Return the model with token merging and its own weights, untrained; 0 returns it unchanged.

    Logits differ from the model's. Attention maps still cover all patches, with equal values for merged ones.

    Args:
        model: a ViT whose blocks attend.
        num_merged: tokens merged in each block, on average; never more than half of a block's patches.
        schedule: ``constant``; or ``decreasing``, from twice as many in the first block to none in the last,
            which is faster and less accurate.

    Raises:
        ConfigError: the number is negative, the schedule unknown, or the model cannot merge tokens.

    Example:
        >>> import torch
        >>> from vitrail.models import build
        >>> faster = merge_tokens(build("vit_ti16").eval(), 8)
        >>> faster(torch.zeros(1, 3, 224, 224)).shape
        torch.Size([1, 1000])
    """
    if num_merged < 0:
        raise ConfigError(
            f"{num_merged} tokens were to be merged in each block",
            expected="0 or more",
            remedy="Begin with 8 for images of 224 pixels and patches of 16",
        )
    check_name("schedule", schedule, SCHEDULES)
    _check(model)
    assert isinstance(model, ViT | VariedViT), "checked"
    if num_merged == 0:
        return model
    counts = merging_counts(len(model.blocks), num_merged, schedule)
    return MergedViT(model, counts).train(model.training)


def merging_counts(num_blocks: int, num_merged: int, schedule: str) -> tuple[int, ...]:
    """Return the number of tokens merged in each block.

    Paper: Bolya et al. 2023, section 4.1, "merging schedule".

    Example:
        >>> merging_counts(4, 3, "constant"), merging_counts(4, 3, "decreasing")
        ((3, 3, 3, 3), (6, 4, 2, 0))
    """
    if schedule == "constant" or num_blocks == 1:
        return (num_merged,) * num_blocks
    return tuple(round(2 * num_merged * (1 - index / (num_blocks - 1))) for index in range(num_blocks))


class MergedViT(Plain):
    """A Vision Transformer with merging blocks; it shares the model's layers under the same names."""

    norm: nn.Module

    def __init__(self, model: ViT | VariedViT, counts: Sequence[int]) -> None:
        super().__init__()
        self.config, self.num_prefix, self.kind = model.config, model.num_prefix, type(model)
        self.register_parameter("prefix", model.prefix)
        for name, part in model._modules.items():  # those that are None, too
            self.register_module(name, part)
        self.blocks = nn.ModuleList(
            TokenMergingBlock(block, num_merged=count, num_prefix=model.num_prefix)  # type: ignore[arg-type]
            for block, count in zip(model.blocks, counts, strict=True)
        )

    def forward(self, images: Images) -> Logits:
        return self.kind.classify(self, *self.tokens_and_grid(images))  # type: ignore[arg-type]

    def tokens_and_grid(self, images: Images) -> tuple[Tokens, Grid]:
        """Return the tokens after the last norm; merged patches are equal."""
        x, grid = self.kind.embed(self, images)  # type: ignore[arg-type]
        state: Merged = begin_merging(x)
        for block in self.blocks:
            x, state = block(x, state, grid=grid)
        # Every patch has its position again, so that a mean counts each token as often as what it stands for.
        return self.norm(restore_tokens(x, state)), grid


def _check(model: nn.Module) -> None:
    if isinstance(model, MergedViT):
        raise _refusal("this model merges tokens already")
    if not isinstance(model, ViT | VariedViT):
        family = getattr(getattr(model, "config", None), "family", type(model).__name__)
        raise _refusal(f"this model, of the family {family}, has no tokens that all its blocks share")
    for block in model.blocks:
        assert isinstance(block, Block)
        if block.norm_place != "pre":
            raise _refusal(
                f"norm_place {block.norm_place!r} of this model normalises elsewhere than before branches"
            )
        if not isinstance(block.mixer, Attention):
            raise _refusal(f"this model mixes tokens by {type(block.mixer).__name__}, which has no keys")
        if block.mixer.positions is not None:
            name = type(block.mixer.positions).__name__
            raise _refusal(
                f"attention of this model has positions ({name}), and merged tokens have no single position"
            )


def _refusal(given: str) -> ConfigError:
    return ConfigError(
        given,
        expected="a ViT with attention, norms before its branches, and positions added to its tokens",
        remedy="Use the model without merging tokens",
    )
