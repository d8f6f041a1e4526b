"""Show, Attend and Tell: a recurrent decoder that attends to image features before each word.

Paper: Xu et al. 2015. Input: any height and width that the encoder takes, or the encoder's features.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from vitrail.models.contract import CaptionModelConfig, CaptionOutput, DecoderState, ModelConfig
from vitrail.models.image_encoder import ImageFeatures, build_encoder
from vitrail.nn.blocks import Dropout
from vitrail.nn.linear import Linear
from vitrail.nn.recurrent import CellName
from vitrail.nn.recurrent_decoder import ContextMemory, ImageAttentionDecoder, RecurrentStack, RecurrentState
from vitrail.nn.tokens import Images


class CaptionerConfig(CaptionModelConfig):
    """Settings of Show, Attend and Tell.

    Departs from the paper: features are normalised and projected to the width of the decoder's states.
    """

    family: ClassVar[str] = "captioner"
    paper: ClassVar[str] = "Xu et al. 2015"
    position_policy: ClassVar[str] = "of words, none: the cell reads them in order; of images, the encoder's"

    cell: CellName = "lstm"
    """Recurrent cell of the decoder."""
    embedding_dim: int = Field(default=512, ge=1)
    """Width of a word embedding."""
    hidden_dim: int = Field(default=512, ge=1)
    """Width of the decoder's states."""
    attention_dim: int = Field(default=512, ge=1)
    """Width of the additive attention's hidden layer."""
    depth: int = Field(default=1, ge=1)
    """Recurrent layers; the top one attends."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Dropout probability of image features, word embeddings and the input of the output layer."""
    tie: bool = True
    """Whether embedding and output are one matrix (Press and Wolf 2017)."""

    def build(self) -> ShowAttendTell:
        return ShowAttendTell(self)


class ShowAttendTell(nn.Module):
    """Caption images with a recurrent decoder that attends to image features.

    Paper: Xu et al. 2015, section 3.1.
    """

    linear = staticmethod(F.linear)

    def __init__(self, config: CaptionerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = build_encoder(config)
        self.norm = nn.LayerNorm(self.encoder.dim)
        self.neck = Linear(self.encoder.dim, config.hidden_dim)
        self.table = nn.Embedding(config.vocabulary_size, config.embedding_dim)
        stack = RecurrentStack(
            config.embedding_dim,
            config.hidden_dim,
            depth=config.depth,
            cell=config.cell,
            dropout=config.dropout,
        )
        self.decoder = ImageAttentionDecoder(
            stack, dim=config.embedding_dim, hidden_dim=config.hidden_dim, attention_dim=config.attention_dim
        )
        self.dropout = Dropout(config.dropout)
        self.output = None if config.tie else Linear(config.embedding_dim, config.vocabulary_size)
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary_size)) if config.tie else None
        nn.init.xavier_uniform_(self.neck.weight)
        nn.init.zeros_(self.neck.bias)
        nn.init.normal_(self.table.weight, std=config.embedding_dim**-0.5)

    def forward(
        self, images: Float[Tensor, "batch ..."], captions: Int[Tensor, "batch captions tokens"]
    ) -> CaptionOutput:
        seen = self.encode(images) if images.ndim == 4 else None
        features = images if seen is None else seen.features
        state = self._look(features).expand(captions.shape[1])
        grid = None if seen is None else seen.grid
        written = self.decoder(self.dropout(self.table(captions)), state, grid=grid)
        return CaptionOutput(self._score(written.vectors), written.weights)

    def encode(self, images: Images) -> ImageFeatures:
        return self.encoder(images)

    @torch.no_grad()
    def start(self, images: Float[Tensor, "batch ..."]) -> RecurrentState[ContextMemory]:
        return self._look(self.encode(images).features if images.ndim == 4 else images)

    @torch.no_grad()
    def step(
        self, tokens: Int[Tensor, " rows"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows vocabulary"], RecurrentState[ContextMemory]]:
        assert isinstance(state, RecurrentState)
        vectors, state = self.decoder.step(self.dropout(self.table(tokens)), state)
        return self._score(vectors), state

    def _look(self, features: Tensor) -> RecurrentState[ContextMemory]:
        return self.decoder.start(self.dropout(self.neck(self.norm(features))))

    def _score(self, vectors: Tensor) -> Tensor:
        vectors = self.dropout(vectors)
        return (
            self.linear(vectors, self.table.weight, self.output_bias)
            if self.output is None
            else self.output(vectors)
        )


VARIANTS: dict[str, ModelConfig] = {
    "show_attend_tell": CaptionerConfig(),  # Xu et al. 2015, with an encoder of our own
    # Ours, for the 6,000 images of Flickr8k, to be trained from random weights on two CPU cores.
    "show_attend_tell_small": CaptionerConfig(
        vocabulary_size=3000,
        image_size=(128, 128),
        encoder="resnet18",
        encoder_changes={"width": 32},
        encoder_stage=-2,
        embedding_dim=256,
        hidden_dim=256,
        attention_dim=128,
    ),
}
