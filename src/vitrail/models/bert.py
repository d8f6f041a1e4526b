"""BERT: a bidirectional Transformer encoder of one text, whose states depend on both sides of a word.

Papers: Devlin et al. 2019; Wang et al. 2020 (MiniLM: the same, narrower); Turc et al. 2019 (small ones).
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.models.contract import LabellingModelConfig, ModelConfig, check_texts
from vitrail.models.text_encoder import mean_over_tokens
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, Block, Dropout
from vitrail.nn.linear import Linear
from vitrail.nn.masks import padding_mask
from vitrail.nn.sequence_positions import LearnedPositions
from vitrail.nn.tokens import Tokens

WEIGHT_STD = 0.02  # published code


class BertConfig(LabellingModelConfig):
    """Settings of a BERT; the defaults are the base model's, without letters' case."""

    family: ClassVar[str] = "bert"
    paper: ClassVar[str] = "Devlin et al. 2019; Wang et al. 2020 (MiniLM); Turc et al. 2019 (small ones)"
    position_policy: ClassVar[str] = "learned positions, which reach to max_length"

    vocabulary_size: int = Field(default=30_522, ge=4)
    """Number of subwords."""
    begin_id: int = Field(default=101, ge=0)
    """First token of a text, [CLS]."""
    end_id: int = Field(default=102, ge=0)
    """Last token of a text, [SEP]."""
    width: int = Field(default=768, ge=1)
    """Token width."""
    depth: int = Field(default=12, ge=1)
    """Number of blocks."""
    num_heads: int = Field(default=12, ge=1)
    """Attention heads; divides ``width``."""
    hidden_dim: int = Field(default=3072, ge=1)
    """Hidden width of each MLP."""
    num_segments: int = Field(default=2, ge=1)
    """Segment embeddings; a text alone is the first segment."""
    pool: Literal["begin", "mean"] = "begin"
    """What labels a sentence: a tanh layer of the state at [CLS], or the mean over its tokens."""
    norm_eps: float = Field(default=1e-12, gt=0)
    """Added to the variance in each norm."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout probability of embeddings, attention weights, branches and before the head."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.width % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} does not divide width {self.width}")
        return self

    def build(self) -> Bert:
        return Bert(self)


class Bert(nn.Module):
    """Embed subwords, positions and segment, run post-norm blocks, and label the text or each token.

    Paper: Devlin et al. 2019, section 3 and figure 2.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config, width = config, config.width
        norm = partial(nn.LayerNorm, eps=config.norm_eps)
        self.embedding = nn.Embedding(config.vocabulary_size, width)
        self.positions = LearnedPositions(config.max_length, width)
        self.segments = nn.Parameter(torch.empty(config.num_segments, width))
        self.norm = norm(width)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(
                width,
                mixer=Attention(width, config.num_heads, dropout=config.dropout),
                mlp=MLP(width, config.hidden_dim),
                norm=norm,
                norm_place="post",
                dropout=config.dropout,
            )
            for _ in range(config.depth)
        )
        # Its name says that other weights may lack it, as those with other labels do.
        has_pool = config.labels == "sentence" and config.pool == "begin"
        self.pooled_head = nn.Sequential(Linear(width, width), nn.Tanh()) if has_pool else None
        self.head = Linear(width, config.num_classes)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=WEIGHT_STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(
        self, tokens: Int[Tensor, "texts tokens"], lengths: Int[Tensor, " texts"]
    ) -> Float[Tensor, "texts *tokens classes"]:
        """Return logits, as ``LabellingModel``.

        Raises:
            DataError: a text is longer than the positions, or has no valid length.
        """
        x = self.states(tokens, lengths)
        if self.config.labels == "sentence":
            x = mean_over_tokens(x, lengths) if self.pooled_head is None else self.pooled_head(x[:, 0])
        return self.head(self.dropout(x))

    def states(self, tokens: Int[Tensor, "texts tokens"], lengths: Int[Tensor, " texts"]) -> Tokens:
        """Return the contextual embedding of each token."""
        check_texts(tokens, lengths)
        x = self.positions(self.embedding(tokens)) + self.segments[0]
        x = self.dropout(self.norm(x))
        may_attend = padding_mask(lengths, tokens.shape[1])
        for block in self.blocks:
            x = block(x, may_attend=may_attend)
        return x


def _sized(depth: int, width: int) -> BertConfig:
    return BertConfig(depth=depth, width=width, num_heads=width // 64, hidden_dim=4 * width)


VARIANTS: dict[str, ModelConfig] = {
    "bert_base": BertConfig(),  # Devlin et al. 2019, section 3
    "bert_large": _sized(24, 1024),  # likewise
    "bert_tiny": _sized(2, 128),  # Turc et al. 2019, table 1, as the two that follow
    "bert_mini": _sized(4, 256),
    "bert_small": _sized(4, 512),
    # Wang et al. 2020, every second layer of 12; sentences are means (sentence-transformers)
    "minilm_l6": BertConfig(depth=6, width=384, hidden_dim=1536, pool="mean"),
}
