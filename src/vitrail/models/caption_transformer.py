"""Captioning Transformer: blocks that refine image features, and a decoder with cross-attention.

Papers: Vaswani et al. 2017; for captions, Sharma et al. 2018 (Conceptual Captions), section 5.
Input: any height and width that the encoder takes, or the encoder's features.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.models.contract import CaptionModelConfig, CaptionOutput, DecoderState, ModelConfig
from vitrail.models.image_encoder import ImageFeatures, build_encoder
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, Block, Dropout
from vitrail.nn.cache import KeyValueCache
from vitrail.nn.decoder import CrossAttention, DecoderBlock, TransformerState, remember_all, step_blocks
from vitrail.nn.linear import Linear
from vitrail.nn.masks import causal_mask
from vitrail.nn.sinusoidal import SinusoidalPositions
from vitrail.nn.tokens import Images


class CaptionTransformerConfig(CaptionModelConfig):
    """Settings of a captioning Transformer with pre-norm blocks (Xiong et al. 2020)."""

    family: ClassVar[str] = "caption_transformer"
    paper: ClassVar[str] = "Vaswani et al. 2017; Sharma et al. 2018; Xiong et al. 2020 (pre-norm)"
    position_policy: ClassVar[str] = "of words, sines and cosines for any length; of images, the encoder's"

    width: int = Field(default=512, ge=2, multiple_of=2)
    """Width of a token."""
    hidden_dim: int = Field(default=2048, ge=1)
    """Width of the hidden layer of each MLP."""
    num_heads: int = Field(default=8, ge=1)
    """Attention heads; divides ``width``."""
    refining_depth: int = Field(default=3, ge=0)
    """Self-attention blocks over the image features, between the encoder and the decoder."""
    decoder_depth: int = Field(default=3, ge=1)
    """Decoder blocks."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout probability of image features, after the positions and at the end of each branch."""
    tie: bool = True
    """Whether embedding and output are one matrix (Press and Wolf 2017)."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.width % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} does not divide width {self.width}")
        return self

    def build(self) -> CaptionTransformer:
        return CaptionTransformer(self)


class CaptionTransformer(nn.Module):
    """Caption images with a Transformer.

    Paper: Vaswani et al. 2017, section 3, with image features in place of the source.
    """

    linear = staticmethod(F.linear)

    def __init__(self, config: CaptionTransformerConfig) -> None:
        super().__init__()
        self.config = config
        width, num_heads, dropout = config.width, config.num_heads, config.dropout
        mlp = partial(MLP, width, config.hidden_dim)
        self.encoder = build_encoder(config)
        self.norm = nn.LayerNorm(self.encoder.dim)
        self.neck = Linear(self.encoder.dim, width)
        self.refining = nn.ModuleList(
            Block(width, mixer=Attention(width, num_heads), mlp=mlp(), dropout=dropout)
            for _ in range(config.refining_depth)
        )
        self.refining_norm = nn.LayerNorm(width)
        self.table = nn.Embedding(config.vocabulary_size, width)
        self.positions = SinusoidalPositions(width)
        self.decoder = nn.ModuleList(
            DecoderBlock(
                width,
                self_attention=Attention(width, num_heads),
                cross_attention=CrossAttention(width, num_heads),
                mlp=mlp(),
                norm="pre",
                dropout=dropout,
            )
            for _ in range(config.decoder_depth)
        )
        self.decoder_norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)
        self.output = None if config.tie else Linear(width, config.vocabulary_size)
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary_size)) if config.tie else None
        _draw_weights(self)

    def forward(
        self, images: Float[Tensor, "batch ..."], captions: Int[Tensor, "batch captions tokens"]
    ) -> CaptionOutput:
        count, num_tokens = captions.shape[1:]
        context = self._refine(self.encode(images).features if images.ndim == 4 else images)
        context = context.repeat_interleave(count, dim=0)
        x = self._embed(captions.flatten(0, 1))
        may_attend = causal_mask(num_tokens, device=captions.device)
        for block in self.decoder:
            x = block(x, context, may_attend=may_attend)
        logits = self.linear(self.decoder_norm(x), *self.score_weights())
        return CaptionOutput(logits.unflatten(0, (-1, count)), None)

    def encode(self, images: Images) -> ImageFeatures:
        return self.encoder(images)

    @torch.no_grad()
    def start(self, images: Float[Tensor, "batch ..."]) -> TransformerState:
        context = self._refine(self.encode(images).features if images.ndim == 4 else images)
        memories = remember_all(self.decoder_blocks, context)
        cache = KeyValueCache.empty(len(images), num_layers=len(self.decoder))
        return TransformerState(memories, None, cache)

    @torch.no_grad()
    def step(
        self, tokens: Int[Tensor, " rows"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows vocabulary"], TransformerState]:
        assert isinstance(state, TransformerState)
        x = self.embed_newest(tokens, state)
        x, state = step_blocks(self.decoder_blocks, x, state)
        return self.linear(self.decoder_norm(x), *self.score_weights()), state

    def embed_newest(
        self, tokens: Int[Tensor, " rows"], state: TransformerState
    ) -> Float[Tensor, "rows 1 dim"]:
        return self._embed(tokens[:, None], first=state.cache.num_steps)

    @property
    def decoder_blocks(self) -> list[DecoderBlock]:
        return cast("list[DecoderBlock]", [*self.decoder])

    def _refine(self, features: Tensor) -> Tensor:
        x = self.dropout(self.neck(self.norm(features)))
        for block in self.refining:
            x = block(x)
        return self.refining_norm(x)

    def _embed(self, tokens: Tensor, *, first: int = 0) -> Tensor:
        x = self.table(tokens) * self.config.width**0.5
        return self.dropout(self.positions(x, first=first))

    def score_weights(self) -> tuple[Tensor, Tensor | None]:
        if self.output is None:
            return self.table.weight, self.output_bias
        return self.output.weight, self.output.bias


VARIANTS: dict[str, ModelConfig] = {
    "caption_transformer": CaptionTransformerConfig(),  # Vaswani et al. 2017, table 3, with three blocks each
    # Ours, for the 30,000 captions of Flickr8k.
    "caption_transformer_small": CaptionTransformerConfig(
        vocabulary_size=3000,
        width=256,
        hidden_dim=512,
        num_heads=4,
        refining_depth=1,
        decoder_depth=3,
        dropout=0.3,
    ),
}


def _draw_weights(model: CaptionTransformer) -> None:
    """Xavier initialisation of linear layers after the encoder; embeddings with variance 1 / width.

    Paper: Glorot and Bengio 2010; as in ``models.transformer``.
    """
    parts = [model.neck, *model.refining, *model.decoder, model.output]
    for part in parts:
        for module in () if part is None else part.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
    nn.init.normal_(model.table.weight, std=model.config.width**-0.5)
