"""Copying or reversing sequences of random symbols: a task without words that needs every position."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from vitrail.engines.cpu import accelerate
from vitrail.lab import harness as lab
from vitrail.models.contract import TranslationModel
from vitrail.models.decoding import greedy
from vitrail.models.recurrent import RecurrentConfig, RecurrentTranslator
from vitrail.models.transformer import Transformer, TransformerConfig
from vitrail.nn.recurrent import CellName

PAD, BEGIN, END = 0, 1, 2  # the defaults of translation models
NUM_SPECIAL = 3

Context = Literal["one vector", "attention"]
"""What a recurrent decoder reads: the encoder's last states, or all of them by additive attention."""
CONTEXTS: tuple[Context, ...] = get_args(Context)


class SymbolBatch(NamedTuple):
    """Sequences of one length with their targets."""

    source: Int[Tensor, "batch source_tokens"]
    """Symbols, then the end."""
    source_lengths: Int[Tensor, " batch"]
    """Full length; there is no padding."""
    decoder_input: Int[Tensor, "batch target_tokens"]
    """The begin token, then the target symbols."""
    labels: Int[Tensor, "batch target_tokens"]
    """The target symbols, then the end."""


def draw_symbols(
    num_sequences: int, length: int, num_symbols: int, generator: torch.Generator, *, reverse: bool = False
) -> SymbolBatch:
    """Draw sequences of independent symbols.

    Args:
        num_symbols: size of the alphabet; a model's vocabulary has ``NUM_SPECIAL`` more.
        reverse: the target is the reversed sequence, not a copy.
    """
    symbols = torch.randint(
        NUM_SPECIAL, NUM_SPECIAL + num_symbols, (num_sequences, length), generator=generator
    )
    written = symbols.flip(1) if reverse else symbols
    begin, end = (torch.full((num_sequences, 1), token) for token in (BEGIN, END))
    return SymbolBatch(
        source=torch.cat((symbols, end), dim=1),
        source_lengths=torch.full((num_sequences,), length + 1),
        decoder_input=torch.cat((begin, written), dim=1),
        labels=torch.cat((written, end), dim=1),
    )


def build_recurrent(
    context: Context,
    num_symbols: int,
    embedding_dim: int,
    hidden_dim: int,
    *,
    cell: CellName,
    bidirectional: bool = True,
) -> RecurrentTranslator:
    """Return a one-layer encoder-decoder; attention without input feeding, so its steps run in parallel."""
    config = RecurrentConfig(
        source_vocabulary_size=num_symbols + NUM_SPECIAL,
        target_vocabulary_size=num_symbols + NUM_SPECIAL,
        cell=cell,
        bidirectional=bidirectional,
        embedding_dim=embedding_dim,
        hidden_dim=hidden_dim,
        encoder_depth=1,
        decoder_depth=1,
        attention="none" if context == "one vector" else "additive",
        input_feeding=False,
        dropout=0.0,
        tie="none",
    )
    return config.build()


def build_transformer(num_symbols: int, width: int, depth: int, **settings: Any) -> Transformer:
    """Return a Transformer with as many blocks in the encoder as in the decoder."""
    config = TransformerConfig(
        source_vocabulary_size=num_symbols + NUM_SPECIAL,
        target_vocabulary_size=num_symbols + NUM_SPECIAL,
        width=width,
        hidden_dim=4 * width,
        num_heads=4,
        encoder_depth=depth,
        decoder_depth=depth,
        dropout=0.0,
        **settings,
    )
    return accelerate(config.build())


def mean_loss(model: nn.Module, batch: SymbolBatch) -> Float[Tensor, ""]:
    """Return the mean cross-entropy per target token, in nats."""
    logits = model(batch.source, batch.source_lengths, batch.decoder_input)
    return F.cross_entropy(logits.float().flatten(0, 1), batch.labels.flatten())


def learn(
    model: nn.Module,
    draw: Callable[[], SymbolBatch],
    *,
    num_steps: int,
    learning_rate: float,
    max_norm: float | None = None,
) -> list[float]:
    """Train a model in place with Adam at a constant rate, without warm-up; return the loss of each step.

    A loss of NaN or infinity ends the training, and is the last one returned.
    """
    optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.9, 0.98))
    losses: list[float] = []
    model.train()
    for _ in range(num_steps):
        loss = mean_loss(model, draw())
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
        optimiser.zero_grad()
        loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimiser.step()
    return losses


def copied_share(model: nn.Module, batch: SymbolBatch) -> float:
    """Return the share of correct symbols under greedy decoding by a ``TranslationModel``."""
    assert isinstance(model, TranslationModel), f"a {type(model).__name__} writes nothing"
    length = batch.labels.shape[1] - 1
    written = greedy(
        model,
        model.start(batch.source, batch.source_lengths),
        begin_id=BEGIN,
        end_id=END,
        max_lengths=torch.full((len(batch.source),), length),
    )
    right = sum(
        token == symbol
        for hypothesis, symbols in zip(written, batch.labels[:, :length].tolist(), strict=True)
        for token, symbol in zip(hypothesis.tokens, symbols, strict=False)  # one that ended early is shorter
    )
    return right / (len(batch.source) * length)


class RecurrentCopying(lab.SeededClaim):
    """A claim about recurrent encoder-decoders that learn to copy."""

    cell: CellName = "gru"
    """Of encoder and decoder; Cho et al. and Bahdanau et al. use gated units."""
    embedding_dim: int = Field(default=32, ge=1)
    hidden_dim: int = Field(default=64, ge=2, multiple_of=2)
    """Of the states, and of the single vector."""
    num_symbols: int = Field(default=16, ge=2)
    """Size of the alphabet."""
    num_steps: int = Field(default=1500, ge=1)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=3e-3, gt=0)
    """Of Adam, constant."""

    def build(self, context: Context) -> RecurrentTranslator:
        return build_recurrent(context, self.num_symbols, self.embedding_dim, self.hidden_dim, cell=self.cell)

    def train(self, model: nn.Module, draw_length: Callable[[], int], generator: torch.Generator) -> None:
        """Train a model to copy; each batch has one length."""
        learn(
            accelerate(model),
            lambda: draw_symbols(self.batch_size, draw_length(), self.num_symbols, generator),
            num_steps=self.num_steps,
            learning_rate=self.learning_rate,
            max_norm=1.0,  # Bahdanau et al. 2015, section B.2
        )
        model.eval()
