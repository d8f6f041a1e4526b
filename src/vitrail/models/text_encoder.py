"""Encoders of one text, for labels of sentences and of words: recurrent, with attention or another mixer.

Papers: Schuster and Paliwal 1997 (bidirectional, a label at every step); Vaswani et al. 2017 (the encoder);
Joulin et al. 2017 (no encoder: the mean of word vectors).
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.models.block_settings import MixerSettings
from vitrail.models.contract import LabellingModelConfig, ModelConfig, check_texts
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, Block, Dropout
from vitrail.nn.linear import Linear
from vitrail.nn.masks import padding_mask
from vitrail.nn.mixers import MixerShape, build_mixer
from vitrail.nn.recurrent import BidirectionalEncoder, CellName, Encoding, ForwardEncoder
from vitrail.nn.rotary import SequenceRotary
from vitrail.nn.sequence_positions import LearnedPositions
from vitrail.nn.sinusoidal import SinusoidalPositions
from vitrail.nn.tokens import Tokens


class TextEncoderConfig(MixerSettings, LabellingModelConfig):
    """Settings of an encoder of one text with a linear head."""

    family: ClassVar[str] = "text_encoder"
    paper: ClassVar[str] = "Schuster and Paliwal 1997; Vaswani et al. 2017; Joulin et al. 2017 (bag of words)"
    position_policy: ClassVar[str] = (
        "rotary and sinusoidal ones are computed for any length, recurrent cells read in order; learned "
        "ones, and mixers with weights for positions, reach to max_length"
    )

    width: int = Field(default=128, ge=2)
    """Token width; of both directions together in a bidirectional encoder."""
    depth: int = Field(default=2, ge=0)
    """Number of blocks or recurrent layers; 0 leaves a bag of words."""
    cell: CellName | None = None
    """Cell of a recurrent encoder; null takes Transformer blocks."""
    bidirectional: bool = True
    """Whether a recurrent encoder reads both ways, or from the first token to the last."""
    num_heads: int = Field(default=4, ge=1)
    """Attention heads, or groups of channels of another mixer; divides ``width``."""
    hidden_dim: int = Field(default=256, ge=1)
    """Hidden width of each MLP."""
    positions: Literal["sinusoidal", "learned", "rotary", "none"] = "rotary"
    """Positions: added sines or learned vectors, or rotary in every self-attention (Su et al. 2021)."""
    norm: Literal["post", "pre"] = "pre"
    """Layer norm: after each residual sum, or before each branch with a final one (Xiong et al. 2020)."""
    pool: Literal["mean", "summary"] = "mean"
    """What labels a sentence: the mean over its tokens; or the state at its begin (Devlin et al. 2019), of a
    recurrent encoder the last state of each direction."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Dropout probability of embeddings, in the encoder and before the head."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        is_blocks = self.cell is None
        if is_blocks and self.width % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} does not divide width {self.width}")
        if self.width % 2:
            raise ValueError(f"width {self.width} is odd, and positions and two directions need pairs")
        if is_blocks and self.positions == "rotary" and self.mixer != "attention":
            raise ValueError(
                f"positions 'rotary' need mixer 'attention', not {self.mixer!r}; choose sinusoidal"
            )
        if not is_blocks and not self.depth:
            raise ValueError("a recurrent encoder needs a depth of at least one")
        return self

    def build(self) -> TextEncoder:
        return TextEncoder(self)


class TextEncoder(nn.Module):
    """Embed the subwords of a text, encode them, and label the text or each token."""

    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.dropout = Dropout(config.dropout)
        self.encoder = BlockEncoder(config) if config.cell is None else _build_recurrent(config, config.cell)
        self.head = Linear(config.width, config.num_classes)
        nn.init.normal_(self.embedding.weight, std=config.width**-0.5)  # as in models/transformer.py

    def forward(
        self, tokens: Int[Tensor, "texts tokens"], lengths: Int[Tensor, " texts"]
    ) -> Float[Tensor, "texts *tokens classes"]:
        """Return logits, as ``LabellingModel``.

        Raises:
            DataError: a text is longer than the positions or a mixer allow, or has no valid length.
        """
        x, summary = self._encode(tokens, lengths)
        if self.config.labels == "sentence":
            x = summary if self.config.pool == "summary" else mean_over_tokens(x, lengths)
        return self.head(self.dropout(x))

    def states(self, tokens: Int[Tensor, "texts tokens"], lengths: Int[Tensor, " texts"]) -> Tokens:
        """Return the contextual embedding of each token."""
        return self._encode(tokens, lengths).states

    def _encode(self, tokens: Tensor, lengths: Tensor) -> Encoding:
        check_texts(tokens, lengths)
        encoding: Encoding = self.encoder(self.dropout(self.embedding(tokens)), lengths)
        return encoding


class BlockEncoder(nn.Module):
    """Positions and residual blocks; the summary of a text is the state at its first token."""

    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.positions: nn.Module | None = None
        if config.positions == "learned":
            self.positions = LearnedPositions(config.max_length, config.width)
        elif config.positions == "sinusoidal":
            self.positions = SinusoidalPositions(config.width)
        self.blocks = nn.ModuleList(_build_block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width) if config.norm == "pre" and config.depth else nn.Identity()

    def forward(self, x: Tokens, lengths: Int[Tensor, " batch"]) -> Encoding:
        may_attend = padding_mask(lengths, x.shape[1])
        if self.positions is not None:
            x = self.positions(x)
        for block in self.blocks:
            x = block(x, may_attend=may_attend)
        x = self.norm(x)
        return Encoding(x, x[:, 0])


def mean_over_tokens(x: Tokens, lengths: Int[Tensor, " batch"]) -> Float[Tensor, "batch dim"]:
    """Average the states of each text without its padding.

    Example:
        >>> import torch
        >>> mean_over_tokens(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([2])).tolist()
        [[2.0]]
    """
    is_there = padding_mask(lengths, x.shape[1])[:, 0, 0, :, None]  # b n 1
    return x.masked_fill(~is_there, 0.0).sum(dim=1) / lengths[:, None].to(x.dtype)


VARIANTS: dict[str, ModelConfig] = {
    # Ours, for thousands of texts and a few CPU cores.
    "text_transformer": TextEncoderConfig(),
    "text_rnn": TextEncoderConfig(cell="lstm", depth=1, pool="summary"),
    "text_gru": TextEncoderConfig(cell="gru", depth=1, pool="summary"),
    "text_bag": TextEncoderConfig(depth=0, positions="none"),  # Joulin et al. 2017, section 2
}


def _build_recurrent(config: TextEncoderConfig, cell: CellName) -> nn.Module:
    encoder = BidirectionalEncoder if config.bidirectional else ForwardEncoder
    return encoder(config.width, config.width, depth=config.depth, cell=cell, dropout=config.dropout)


def _build_block(config: TextEncoderConfig) -> Block:
    mixer: nn.Module
    if config.mixer == "attention":
        positions = SequenceRotary() if config.positions == "rotary" else None
        mixer = Attention(config.width, config.num_heads, dropout=config.dropout, positions=positions)
    else:
        mixer = build_mixer(config.mixer, MixerShape(config.width, config.num_heads, config.max_length))
    mlp = MLP(config.width, config.hidden_dim)
    return Block(config.width, mixer=mixer, mlp=mlp, norm_place=config.norm, dropout=config.dropout)
