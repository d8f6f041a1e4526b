"""Recurrent translation: an encoder, and a decoder with one context vector or with attention.

Papers: Sutskever et al. 2014 and Cho et al. 2014 (one vector for the whole sentence); Bahdanau et al. 2015
and Luong et al. 2015 (attention).
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.models.contract import DecoderState, ModelConfig, TranslationModelConfig
from vitrail.nn.blocks import Dropout
from vitrail.nn.linear import Linear
from vitrail.nn.masks import padding_mask
from vitrail.nn.recurrent import BidirectionalEncoder, CellName, ForwardEncoder
from vitrail.nn.recurrent_decoder import (
    AttentionDecoder,
    ContextAttention,
    ContextFeedingDecoder,
    InputFeedingDecoder,
    Readout,
    RecurrentStack,
    RecurrentState,
    SummaryDecoder,
)
from vitrail.nn.scores import ScoreName


class RecurrentConfig(TranslationModelConfig):
    """Settings of a recurrent encoder-decoder; the defaults are those of Luong et al. 2015, section 4.1.

    Departs from the papers: both directions of the encoder have half the width each, all layers have the same
    type; the initial state of every decoder layer is projected from the encoder's summary.
    """

    family: ClassVar[str] = "recurrent"
    paper: ClassVar[str] = "Sutskever et al. 2014; Cho et al. 2014; Bahdanau et al. 2015; Luong et al. 2015"
    position_policy: ClassVar[str] = "none; the cells read the tokens in order, at any length"

    cell: CellName = "lstm"
    """Recurrent cell of encoder and decoder: ``lstm``, ``gru``, or ``tanh`` without gates (Elman 1990)."""
    bidirectional: bool = True
    """Whether the encoder reads both ways (Bahdanau et al. 2015), or from the first token to the last."""
    embedding_dim: int = Field(default=1000, ge=1)
    """Width of a token embedding."""
    hidden_dim: int = Field(default=1000, ge=2, multiple_of=2)
    """Width of the decoder's states, and of both encoder directions together."""
    encoder_depth: int = Field(default=4, ge=1)
    """Layers of the encoder."""
    decoder_depth: int = Field(default=4, ge=1)
    """Layers of the decoder."""
    attention: Literal["none"] | ScoreName = "dot"
    """Score of the attention to the encoder's states; without attention every step reads the encoder's last
    states (Cho et al. 2014)."""
    input_feeding: bool | Literal["context"] = True
    """What each step reads beside the token: nothing (false); the previous attentional vector (true; Luong et
    al. 2015, section 3.3); or the context that the previous state attends to (``context``; Bahdanau et al.
    2015, section 3.1)."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Dropout probability of token embeddings, between layers and of the attentional vector; recurrent
    connections have none."""
    tie: Literal["none", "output", "all"] = "none"
    """As for all translation models; if tied, the attentional vector is projected to the width of the target
    embedding."""

    @model_validator(mode="after")
    def _check_feeding(self) -> Self:
        if self.input_feeding and self.attention == "none":
            raise ValueError(
                "input_feeding feeds what attention made, and attention is 'none'; "
                "set input_feeding to false, or choose a score"
            )
        return self

    def build(self) -> RecurrentTranslator:
        return RecurrentTranslator(self)


class RecurrentTranslator(nn.Module):
    """Translate with a recurrent encoder and decoder, with or without attention.

    Paper: Luong et al. 2015, section 2 and 3.
    """

    linear = staticmethod(F.linear)

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        width, hidden_dim = config.embedding_dim, config.hidden_dim
        # A tied matrix has one name, so that it is stored and counted once.
        self.source_embedding = (
            None if config.tie == "all" else nn.Embedding(config.source_vocabulary_size, width)
        )
        encoder = BidirectionalEncoder if config.bidirectional else ForwardEncoder
        self.encoder = encoder(
            width, hidden_dim, depth=config.encoder_depth, cell=config.cell, dropout=config.dropout
        )
        self.target_embedding = nn.Embedding(config.target_vocabulary_size, width)
        self.decoder = _build_decoder(config)
        self.dropout = Dropout(config.dropout)
        out_dim = config.target_vocabulary_size if config.tie == "none" else width
        self.output = Linear(hidden_dim, out_dim, bias=False)
        _draw_tables(self)

    def forward(
        self,
        source: Int[Tensor, "batch source_tokens"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target_tokens"],
    ) -> Float[Tensor, "batch target_tokens vocabulary"]:
        """Return next-token logits under teacher forcing; under autocast they stay in the narrow type."""
        state = self._read(source, source_lengths)
        return self._score(self.decoder(self.dropout(self.target_embedding(target)), state))

    @torch.no_grad()
    def start(
        self, source: Int[Tensor, "batch source_tokens"], source_lengths: Int[Tensor, " batch"]
    ) -> RecurrentState:
        return self._read(source, source_lengths)

    @torch.no_grad()
    def step(
        self, tokens: Int[Tensor, " rows"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows vocabulary"], RecurrentState]:
        assert isinstance(state, RecurrentState)
        vectors, state = self.decoder.step(self.dropout(self.target_embedding(tokens)), state)
        return self._score(vectors), state

    def _read(self, source: Tensor, source_lengths: Tensor) -> RecurrentState:
        table = self.target_embedding if self.source_embedding is None else self.source_embedding
        encoding = self.encoder(self.dropout(table(source)), source_lengths)
        return self.decoder.start(encoding, padding_mask(source_lengths, source.shape[1]))

    def _score(self, vectors: Tensor) -> Tensor:
        scored = self.output(self.dropout(vectors))
        if self.config.tie != "none":
            scored = self.linear(scored, self.target_embedding.weight)
        return scored


# For Multi30k's 29,000 pairs of short sentences; one layer as in Bahdanau et al. 2015, section A.1.
_LSTM = RecurrentConfig(
    source_vocabulary_size=8000,
    target_vocabulary_size=8000,
    embedding_dim=160,
    hidden_dim=320,
    encoder_depth=1,
    decoder_depth=1,
    dropout=0.3,
    tie="output",
)
_GRU = _LSTM.with_changes({"cell": "gru"})
_ONE_VECTOR = {"attention": "none", "input_feeding": False}

VARIANTS: dict[str, ModelConfig] = {
    "rnn": _LSTM.with_changes(_ONE_VECTOR),  # Sutskever et al. 2014, section 2
    "rnn_additive": _LSTM.with_changes({"attention": "additive"}),  # Bahdanau et al. 2015, section A.1.2
    "rnn_general": _LSTM.with_changes({"attention": "general"}),  # Luong et al. 2015, equation 8
    "rnn_dot": _LSTM.with_changes({"attention": "dot"}),  # Luong et al. 2015, equation 8
    "rnn_scaled_dot": _LSTM.with_changes({"attention": "scaled_dot"}),  # Vaswani et al. 2017, equation 1
    "rnn_tanh": _LSTM.with_changes({"cell": "tanh", **_ONE_VECTOR}),  # Elman 1990, as encoder and decoder
    "gru": _GRU.with_changes(_ONE_VECTOR),  # Cho et al. 2014, section 2.2
    # Bahdanau et al. 2015, section 3
    "gru_additive": _GRU.with_changes({"attention": "additive", "input_feeding": "context"}),
    # The same score in the decoder of Luong et al. 2015, section 3
    "gru_luong": _GRU.with_changes({"attention": "additive"}),
}


def _build_decoder(config: RecurrentConfig) -> AttentionDecoder | ContextFeedingDecoder:
    dim = config.hidden_dim
    stack = RecurrentStack(
        config.embedding_dim + (dim if config.attention == "none" else 0),
        dim,
        depth=config.decoder_depth,
        cell=config.cell,
        dropout=config.dropout,
    )
    if config.attention == "none":
        return SummaryDecoder(stack, Readout(dim))
    attention = ContextAttention(dim, dim, score=config.attention)
    if config.input_feeding == "context":
        return ContextFeedingDecoder(stack, attention, dim=config.embedding_dim, hidden_dim=dim)
    return (InputFeedingDecoder if config.input_feeding else AttentionDecoder)(stack, Readout(dim, attention))


def _draw_tables(model: RecurrentTranslator) -> None:
    """Initialise embeddings and output; the layers between initialise themselves.

    Paper: Luong et al. 2015, section 4.1, for embeddings; Glorot and Bengio 2010 for the output.
    """
    nn.init.xavier_uniform_(model.output.weight)
    for table in (model.source_embedding, model.target_embedding):
        if table is not None:
            nn.init.uniform_(table.weight, -0.1, 0.1)
