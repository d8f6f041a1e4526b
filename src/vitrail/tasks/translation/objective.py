"""Translation: token cross entropy, evaluated as decoded text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from vitrail.data.text.subwords import PairVocabulary
from vitrail.data.text_preprocessing import PairPreprocessing
from vitrail.models.contract import TranslationModel
from vitrail.models.decoding import USUAL_PATIENCE, Hypothesis, beam_search
from vitrail.tasks.generation import WrittenTexts, sign_scoring, sign_search
from vitrail.tasks.translation.scores import corpus_scores, headline_scores, translation_tables
from vitrail.train.losses import token_losses
from vitrail.train.objective import Loss, TensorBatch

SIGNED = ("bleu", "chrf", "bleu_tokenised")


@dataclass(frozen=True)
class PairBatch(TensorBatch):
    """Sentence pairs as rows of subwords."""

    source: Int[Tensor, "batch source_tokens"]
    """Source subwords, the end, and padding."""
    source_lengths: Int[Tensor, " batch"]
    """Source subwords including the end."""
    target_in: Int[Tensor, "batch target_tokens"]
    """Decoder input: begin, then the target subwords."""
    target_out: Int[Tensor, "batch target_tokens"]
    """Targets: the target subwords, then the end."""
    indices: Int[Tensor, " batch"]
    """Index of each pair in its source."""
    references: tuple[str, ...]
    """Reference translations, as outputs are compared with them."""
    sources: tuple[str, ...]
    """Source sentences, unprocessed."""


class TranslationObjective:
    """Collation, loss and evaluation of a translator.

    Args:
        preprocessing: applied to sentences before tokenisation.
        label_smoothing: probability mass spread evenly over all subwords (Szegedy et al. 2016, section 7).
        beam_size: for evaluation; 1 decodes greedily.
        length_penalty: exponent of the length that a hypothesis' log-probability is divided by.
        max_length_ratio: maximum output length relative to the source.
        max_length_extra: subwords added to that limit.
    """

    best_by: tuple[str, Literal["max", "min"]] = ("bleu", "max")
    unit = "tokens"

    def __init__(
        self,
        vocabulary: PairVocabulary,
        preprocessing: PairPreprocessing,
        *,
        label_smoothing: float = 0.0,
        beam_size: int = 1,
        length_penalty: float = 1.0,
        max_length_ratio: float = 2.0,
        max_length_extra: int = 10,
    ) -> None:
        self.vocabulary, self.preprocessing = vocabulary, preprocessing
        self.label_smoothing = label_smoothing
        self.beam_size, self.length_penalty = beam_size, length_penalty
        self.max_length_ratio, self.max_length_extra = max_length_ratio, max_length_extra

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> PairBatch:
        source_rows = [pair.source_row for pair in samples]
        target_rows = [pair.target_row for pair in samples]
        source, target = self.vocabulary.source, self.vocabulary.target
        return PairBatch(
            source=_pad([[*row, source.end_id] for row in source_rows], source.pad_id),
            source_lengths=torch.tensor([len(row) + 1 for row in source_rows], dtype=torch.int64),
            target_in=_pad([[target.begin_id, *row] for row in target_rows], target.pad_id),
            target_out=_pad([[*row, target.end_id] for row in target_rows], target.pad_id),
            indices=torch.tensor([pair.index for pair in samples], dtype=torch.int64),
            references=tuple(self.preprocessing.lowered([pair.target for pair in samples])),
            sources=tuple(pair.source for pair in samples),
        )

    def loss(self, model: nn.Module, batch: PairBatch) -> Loss:
        """Sum the label-smoothed cross entropy over the target subwords, in float32."""
        is_token = batch.target_out != self.vocabulary.target.pad_id
        losses = token_losses(
            model(batch.source, batch.source_lengths, batch.target_in),
            batch.target_out,
            is_token,
            label_smoothing=self.label_smoothing,
        )
        return Loss(
            total=losses.total,
            count=is_token.sum().float(),
            parts={"nll": losses.nll.sum(), "correct": losses.is_correct.sum().float()},
        )

    def evaluator(self) -> TranslationEvaluator:
        return TranslationEvaluator(self)


class TranslationEvaluator:
    """Translate every sentence, and compute the log loss of the references."""

    def __init__(self, objective: TranslationObjective) -> None:
        self.objective = objective
        self.written = WrittenTexts("source", "reference", "hypothesis")

    def update(self, model: nn.Module, batch: PairBatch) -> None:
        is_token = batch.target_out != self.objective.vocabulary.target.pad_id
        logits = model(batch.source, batch.source_lengths, batch.target_in)
        nll = token_losses(logits, batch.target_out, is_token).nll.double().sum(dim=1)
        hypotheses = self._decode(cast(TranslationModel, model), batch)
        self.written.add(
            batch.indices,
            batch.sources,
            batch.references,
            self.objective.vocabulary.target.decode([hypothesis.tokens for hypothesis in hypotheses]),
            num_tokens=is_token.sum(dim=1),
            nll=nll,
            hypotheses=hypotheses,
        )

    def state(self) -> dict[str, Tensor]:
        return self.written.state()

    def absorb(self, state: dict[str, Tensor]) -> None:
        self.written.absorb(state)

    def result(self) -> dict[str, Any]:
        """Return BLEU and the mean log loss per subword."""
        count = len(self.written.indices)
        if not count:
            return {"bleu": 0.0, "nll": 0.0, "perplexity": 1.0, "count": 0}
        preprocessing = self.objective.preprocessing
        scores = corpus_scores(
            self.written["hypothesis"],
            self.written["reference"],
            language=preprocessing.languages[1],
            tokenised=preprocessing.tokenised,
            num_resamples=0,
        )
        return {"bleu": scores.bleu.score, **self.written.likelihood(), "count": count}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the headline scores, and the tables behind them as plain JSON values."""
        written, preprocessing = self.written, self.objective.preprocessing
        tables = translation_tables(
            written["source"],
            written["hypothesis"],
            written["reference"],
            indices=written.indices,
            language=preprocessing.languages[1],
            tokenised=preprocessing.tokenised,
            with_tokenised_bleu=True,
        )
        scores = headline_scores(tables.scores) | written.likelihood() | written.cut_off()
        return scores, tables.model_dump(mode="json")

    def signature(self, tables: Mapping[str, Any]) -> dict[str, str]:
        """Return decoding settings, and the tokenisation of each score."""
        objective = self.objective
        longest = f"at most {objective.max_length_ratio:g} x source + {objective.max_length_extra} tokens"
        scores = {name: tables["scores"][name] for name in SIGNED}
        return {
            "search": sign_search(objective.beam_size, objective.length_penalty, longest),
            **{name: sign_scoring(score["signature"]) for name, score in scores.items() if score},
        }

    def _decode(self, model: TranslationModel, batch: PairBatch) -> list[Hypothesis]:
        objective, target = self.objective, self.objective.vocabulary.target
        found = beam_search(
            model,
            model.start(batch.source, batch.source_lengths),
            begin_id=target.begin_id,
            end_id=target.end_id,
            pad_id=target.pad_id,
            max_lengths=(batch.source_lengths * objective.max_length_ratio).long()
            + objective.max_length_extra,
            beam_size=objective.beam_size,
            length_penalty=objective.length_penalty,
            patience=USUAL_PATIENCE,
        )
        return [best for (best,) in found]


def _pad(rows: Sequence[Sequence[int]], pad_id: int) -> Int[Tensor, "batch tokens"]:
    """Pad rows of subwords to the longest one."""
    lengths = np.array([len(row) for row in rows])
    padded = np.full((len(rows), lengths.max()), pad_id, dtype=np.int64)
    padded[np.arange(lengths.max()) < lengths[:, None]] = [*chain.from_iterable(rows)]
    return torch.from_numpy(padded)
