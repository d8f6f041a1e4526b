"""The parts that a Transformer which translates is put together from, as its settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from vitrail.nn.activations import ACTIVATIONS
from vitrail.nn.attention import MultiHeadAttention
from vitrail.nn.blocks import MLP, PostNormBlock, PreNormBlock
from vitrail.nn.decoder_attention import CausalAttention, CrossAttention
from vitrail.nn.decoder_blocks import PostNormDecoderBlock, PreNormDecoderBlock
from vitrail.nn.mixers import MixerShape, build_mixer
from vitrail.nn.positions import sinusoidal_positions_in_halves
from vitrail.nn.rotary import SequenceRotary
from vitrail.nn.sequence_positions import LearnedPositions, SequenceRelativeBias, SinusoidalPositions

if TYPE_CHECKING:
    from vitrail.models.transformer import TransformerConfig


def build_positions(config: TransformerConfig) -> nn.Module | None:
    """Make the positions that are added to the tokens, where there are any."""
    if config.positions == "learned":
        return LearnedPositions(config.max_length, config.width)
    if config.positions == "sinusoidal":
        return SinusoidalPositions(config.width)
    if config.positions == "sinusoidal_halves":
        return SinusoidalPositions(config.width, make_table=sinusoidal_positions_in_halves)
    return None


def _build_scheme(config: TransformerConfig, *, is_decoder: bool) -> nn.Module | None:
    """Make one self-attention's own scheme, where positions are not added to the tokens."""
    if config.positions == "relative":
        return SequenceRelativeBias(config.num_heads, bidirectional=not is_decoder)
    if config.positions == "rotary":
        return SequenceRotary()
    return None


def build_encoder_block(config: TransformerConfig) -> nn.Module:
    """Make a block that mixes the tokens of a sentence by attention or another mixer."""
    mixer: nn.Module
    if config.mixer == "attention":
        mixer = MultiHeadAttention(
            config.width,
            config.num_heads,
            dropout=config.attention_dropout,
            positions=_build_scheme(config, is_decoder=False),
        )
    else:
        mixer = build_mixer(config.mixer, MixerShape(config.width, config.num_heads, config.max_length))
    block = {"pre": PreNormBlock, "post": PostNormBlock}[config.norm]
    return block(config.width, mixer=mixer, mlp=_build_mlp(config), dropout=config.dropout)


def build_decoder_block(config: TransformerConfig) -> nn.Module:
    """Make a block that attends to what is written, and then to what is read."""
    width, num_heads, dropout = config.width, config.num_heads, config.attention_dropout
    scheme = _build_scheme(config, is_decoder=True)
    block = {"pre": PreNormDecoderBlock, "post": PostNormDecoderBlock}[config.norm]
    return block(
        width,
        self_attention=CausalAttention(width, num_heads, dropout=dropout, positions=scheme),
        cross_attention=CrossAttention(width, num_heads, dropout=dropout),
        mlp=_build_mlp(config),
        dropout=config.dropout,
    )


def _build_mlp(config: TransformerConfig) -> MLP:
    return MLP(
        config.width,
        config.hidden_dim,
        activation=ACTIVATIONS[config.activation],
        dropout=config.hidden_dropout,
    )
