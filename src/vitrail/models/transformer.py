"""The Transformer for translation, with attention or another mixer in the encoder.

Papers: Vaswani et al. 2017; Xiong et al. 2020 (the norm before each branch); Wu et al. 2021 (tiny).
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.models.block_settings import BlockSettings, check_blocks, split_positions
from vitrail.models.contract import DecoderState, ModelConfig, TranslationModelConfig
from vitrail.nn.activations import ACTIVATIONS, ActivationName
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, Block, Dropout
from vitrail.nn.cache import KeyValueCache
from vitrail.nn.decoder import (
    CrossAttention,
    CrossMemory,
    DecoderBlock,
    TransformerState,
    remember_all,
    step_blocks,
)
from vitrail.nn.linear import Linear
from vitrail.nn.masks import causal_mask, padding_mask
from vitrail.nn.mixers import MixerShape, build_mixer
from vitrail.nn.rotary import SequenceRotary
from vitrail.nn.sequence_positions import LearnedPositions, SequenceRelativeBias
from vitrail.nn.sinusoidal import SinusoidalPositions, sinusoidal_positions_in_halves

OnePosition = Literal["sinusoidal", "sinusoidal_halves", "learned", "relative", "rotary", "none"]
BothPositions = Literal["sinusoidal+relative", "sinusoidal+rotary", "learned+relative", "learned+rotary"]
NORM_EPS = 1e-5  # Ott et al. 2019 (fairseq), published code, and torch's default


class TransformerConfig(BlockSettings, TranslationModelConfig):
    """Settings of a Transformer encoder-decoder; the defaults are the base model's."""

    family: ClassVar[str] = "transformer"
    paper: ClassVar[str] = "Vaswani et al. 2017; Xiong et al. 2020 (pre-norm); Wu et al. 2021 (tiny)"
    position_policy: ClassVar[str] = (
        "sinusoidal, relative and rotary ones are computed for any length; learned ones, and mixers with "
        "weights for positions, reach to max_length"
    )

    width: int = Field(default=512, ge=2)
    """Token width."""
    hidden_dim: int = Field(default=2048, ge=1)
    """Hidden width of each MLP."""
    num_heads: int = Field(default=8, ge=1)
    """Attention heads, or groups of channels of another mixer; divides ``width``."""
    encoder_depth: int = Field(default=6, ge=1)
    """Blocks of the encoder."""
    decoder_depth: int = Field(default=6, ge=1)
    """Blocks of the decoder."""
    norm: Literal["post", "pre"] = "post"
    """Norm: after each residual sum, or before each branch with a final one in encoder and decoder
    (Xiong et al. 2020)."""
    positions: Literal[OnePosition, BothPositions] = "sinusoidal"
    """Positions: sinusoidal, with sines and cosines interleaved or in halves (Marian); learned; in every
    self-attention, a relative bias (Raffel et al. 2020) or rotary (Su et al. 2021); or one of each, as in
    ``sinusoidal+relative``."""
    activation: ActivationName = "relu"
    """Activation of each MLP."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout probability after the positions and at the end of each branch."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability of attention weights."""
    hidden_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability of hidden values of an MLP."""
    decoder_mixer: Literal["attention", "light_convolution", "dynamic_convolution"] = "attention"
    """Token mixer of the decoder, beside its cross-attention."""
    max_length: int = Field(default=512, ge=1)
    """Maximum tokens of a sentence, for learned positions and for mixers with weights per position; nothing
    else has a limit."""
    scale_embedding: bool = True
    """Whether embeddings are multiplied by the square root of ``width``."""
    output_bias: bool = False
    """Whether the output layer has a bias."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        mixers = (self.mixer, self.decoder_mixer)
        head_dim = check_blocks(self, self.width, self.num_heads, mixers)
        added, in_attention = split_positions(self.positions)
        if added.startswith("sinusoidal") and self.width % 2:
            raise ValueError(f"{added} positions need an even width, not {self.width}")
        if in_attention == "rotary" and head_dim % 2:
            raise ValueError(f"rotary positions need heads of an even width, not {head_dim}")
        other = next((name for name in mixers if name != "attention"), None)
        if other is not None and in_attention != "none":
            raise ValueError(f"positions {self.positions!r} need mixer 'attention', not {other!r}")
        return self

    def build(self) -> Transformer:
        return Transformer(self)


class Transformer(nn.Module):
    """Translate with a Transformer encoder and decoder of the same width.

    Paper: Vaswani et al. 2017, section 3.
    """

    linear = staticmethod(F.linear)

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        width, is_pre = config.width, config.norm == "pre"
        # A tied matrix has one name, so that it is stored and counted once.
        self.source_embedding = (
            None if config.tie == "all" else nn.Embedding(config.source_vocabulary_size, width)
        )
        self.source_positions = _build_positions(config)
        make_norm = config.make_norm(NORM_EPS)
        self.encoder = nn.ModuleList(_build_encoder_block(config, i) for i in range(config.encoder_depth))
        self.encoder_norm = make_norm(width) if is_pre else nn.Identity()
        self.target_embedding = nn.Embedding(config.target_vocabulary_size, width)
        self.target_positions = _build_positions(config)
        self.decoder = nn.ModuleList(_build_decoder_block(config, i) for i in range(config.decoder_depth))
        self.decoder_norm = make_norm(width) if is_pre else nn.Identity()
        self.output: Linear | None = None
        self.output_bias: nn.Parameter | None = None
        if config.tie == "none":
            self.output = Linear(width, config.target_vocabulary_size, bias=config.output_bias)
        elif config.output_bias:
            self.output_bias = nn.Parameter(torch.zeros(config.target_vocabulary_size))
        self.dropout = Dropout(config.dropout)
        _draw_weights(self)

    def forward(
        self,
        source: Int[Tensor, "batch source_tokens"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target_tokens"],
    ) -> Float[Tensor, "batch target_tokens vocabulary"]:
        """Return next-token logits under teacher forcing, as ``TranslationModel``.

        Under autocast the logits stay in the narrow type: a loss widens them piece by piece.

        Raises:
            DataError: a sentence is longer than the positions or a mixer allow.
        """
        is_there = padding_mask(source_lengths, source.shape[1])
        context = self._encode(source, is_there)
        x = self._embed(target, self.target_embedding, self.target_positions)
        may_attend = causal_mask(target.shape[1], device=target.device)
        for block in self.decoder:
            x = block(x, context, may_attend=may_attend, context_may_attend=is_there)
        return self.linear(self.decoder_norm(x), *self.score_weights())

    @torch.no_grad()
    def start(
        self, source: Int[Tensor, "batch source_tokens"], source_lengths: Int[Tensor, " batch"]
    ) -> TransformerState:
        """Encode the sentences, without gradients; return the state before the first step.

        Raises:
            DataError: as the forward pass.
        """
        bias = None
        if int(source_lengths.min()) < source.shape[1]:
            is_there = padding_mask(source_lengths, source.shape[1])
            bias = torch.zeros(is_there.shape, device=source.device).masked_fill(~is_there, -math.inf)
        cache = KeyValueCache.empty(len(source), num_layers=len(self.decoder))
        return TransformerState(self.read(source, source_lengths), bias, cache)

    def read(
        self, source: Int[Tensor, "batch source_tokens"], source_lengths: Int[Tensor, " batch"]
    ) -> tuple[CrossMemory, ...]:
        """Encode the sentences, and return the decoder's cross-attention keys and values."""
        is_padded = int(source_lengths.min()) < source.shape[1]
        is_there = padding_mask(source_lengths, source.shape[1]) if is_padded else None
        return remember_all(self.decoder_blocks, self._encode(source, is_there))

    @torch.no_grad()
    def step(
        self, tokens: Int[Tensor, " rows"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows vocabulary"], TransformerState]:
        """Return the next-token logits and the new state.

        Raises:
            DataError: as the forward pass.
        """
        assert isinstance(state, TransformerState)
        x = self.embed_newest(tokens, state)
        x, state = step_blocks(self.decoder_blocks, x, state)
        return self.linear(self.decoder_norm(x), *self.score_weights()), state

    def embed_newest(
        self, tokens: Int[Tensor, " rows"], state: TransformerState
    ) -> Float[Tensor, "rows 1 dim"]:
        first = state.cache.num_steps
        return self._embed(tokens[:, None], self.target_embedding, self.target_positions, first=first)

    @property
    def decoder_blocks(self) -> list[DecoderBlock]:
        return cast("list[DecoderBlock]", [*self.decoder])

    def _encode(self, source: Tensor, is_there: Tensor | None) -> Tensor:
        table = self.target_embedding if self.source_embedding is None else self.source_embedding
        x = self._embed(source, table, self.source_positions)
        for block in self.encoder:
            x = block(x, may_attend=is_there)
        return self.encoder_norm(x)

    def _embed(
        self, tokens: Tensor, table: nn.Embedding, positions: nn.Module | None, *, first: int = 0
    ) -> Tensor:
        x = table(tokens)
        if self.config.scale_embedding:
            x = x * self.config.width**0.5
        if positions is not None:
            x = positions(x, first=first)
        return self.dropout(x)

    def score_weights(self) -> tuple[Tensor, Tensor | None]:
        if self.output is not None:
            return self.output.weight, self.output.bias
        return self.target_embedding.weight, self.output_bias


VARIANTS: dict[str, ModelConfig] = {
    # Wu et al. 2021, section 3.1, "Transformer-Tiny"; for Multi30k, whose joint vocabulary is about 10,000
    "transformer_tiny": TransformerConfig(
        source_vocabulary_size=10_000,
        target_vocabulary_size=10_000,
        width=128,
        hidden_dim=256,
        num_heads=4,
        encoder_depth=4,
        decoder_depth=4,
        dropout=0.3,
    ),
    "transformer_base": TransformerConfig(),  # Vaswani et al. 2017, table 3
    "transformer_big": TransformerConfig(  # Vaswani et al. 2017, table 3
        width=1024, hidden_dim=4096, num_heads=16, dropout=0.3
    ),
}


def _build_positions(config: TransformerConfig) -> nn.Module | None:
    added, _ = split_positions(config.positions)
    if added == "learned":
        return LearnedPositions(config.max_length, config.width)
    if added == "sinusoidal":
        return SinusoidalPositions(config.width)
    if added == "sinusoidal_halves":
        return SinusoidalPositions(config.width, make_table=sinusoidal_positions_in_halves)
    return None


def _build_scheme(config: TransformerConfig, *, is_decoder: bool) -> nn.Module | None:
    _, in_attention = split_positions(config.positions)
    if in_attention == "relative":
        return SequenceRelativeBias(config.num_heads, bidirectional=not is_decoder)
    if in_attention == "rotary":
        return SequenceRotary()
    return None


def _build_encoder_block(config: TransformerConfig, index: int) -> nn.Module:
    return Block(
        config.width,
        mixer=_build_mixer(config, index, is_decoder=False),
        mlp=_build_mlp(config),
        norm=config.make_norm(NORM_EPS),
        norm_place=config.norm,
        dropout=config.dropout,
    )


def _build_decoder_block(config: TransformerConfig, index: int) -> DecoderBlock:
    return DecoderBlock(
        config.width,
        self_attention=_build_mixer(config, index, is_decoder=True),
        cross_attention=CrossAttention(
            config.width,
            config.num_heads,
            head_dim=config.head_dim,
            value_dim=config.value_dim,
            dropout=config.attention_dropout,
        ),
        mlp=_build_mlp(config),
        norm=config.norm,
        norm_layer=config.make_norm(NORM_EPS),
        dropout=config.dropout,
    )


def _build_mixer(config: TransformerConfig, index: int, *, is_decoder: bool) -> nn.Module:
    name = config.decoder_mixer if is_decoder else config.mixer
    if name == "attention":
        return Attention(
            config.width,
            config.num_heads,
            head_dim=config.head_dim,
            value_dim=config.value_dim,
            dropout=config.attention_dropout,
            positions=_build_scheme(config, is_decoder=is_decoder),
        )
    shape = MixerShape(
        config.width,
        config.num_heads,
        config.max_length,
        kernel_size=config.kernel_size(index),
        kernel_dropout=config.kernel_dropout,
        causal=is_decoder,
    )
    return build_mixer(name, shape)


def _build_mlp(config: TransformerConfig) -> MLP:
    return MLP(
        config.width,
        config.hidden_dim,
        activation=ACTIVATIONS[config.activation],
        dropout=config.hidden_dropout,
    )


def _draw_weights(model: Transformer) -> None:
    """Xavier initialisation of linear layers; embeddings with variance 1 / width.

    Fused projections, such as queries, keys and values, are drawn as in attention: with the bound
    ``sqrt(6 / (width + outputs))`` of one matrix for all three.

    Source: Ott et al. 2019 (fairseq), published code, with which post-norm trains.
    """
    std = model.config.width**-0.5
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=std)
    for module in model.modules():
        if isinstance(module, CrossAttention):
            num_out = module.query.out_features + module.key_value.out_features
            bound = (6 / (model.config.width + num_out)) ** 0.5
            nn.init.uniform_(module.query.weight, -bound, bound)
            nn.init.uniform_(module.key_value.weight, -bound, bound)
    if model.output is not None:
        nn.init.normal_(model.output.weight, std=std)
