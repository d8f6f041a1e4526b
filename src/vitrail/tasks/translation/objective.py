"""Translation: token cross entropy, evaluated as decoded text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from vitrail.data.text.rows import join_rows
from vitrail.data.text.subwords import PairVocabulary
from vitrail.data.text_preprocessing import PairPreprocessing
from vitrail.models.contract import TranslationModel
from vitrail.tasks.generation import WrittenTexts, import_sacrebleu, sign_scoring, sign_search
from vitrail.tasks.translation.scores import EXTRA, corpus_scores, headline_scores, translation_tables
from vitrail.tasks.translation.search import MAX_LENGTH_EXTRA, MAX_LENGTH_RATIO, Search
from vitrail.train.losses import token_losses
from vitrail.train.objective import Loss, TensorBatch

SIGNED = ("bleu", "chrf", "bleu_tokenised")
GREEDY = Search(beam_size=1)


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
    """Collation, loss and evaluation of a translator."""

    best_by: tuple[str, Literal["max", "min"]] = ("bleu", "max")
    unit = "tokens"

    def __init__(
        self,
        vocabulary: PairVocabulary,
        preprocessing: PairPreprocessing,
        *,
        label_smoothing: float = 0.0,
        search: Search = GREEDY,
    ) -> None:
        import_sacrebleu(EXTRA)  # missing, it is reported before the training
        self.vocabulary, self.preprocessing = vocabulary, preprocessing
        self.label_smoothing, self.search = label_smoothing, search

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> PairBatch:
        target_rows = [pair.target_row for pair in samples]
        source, target = self.vocabulary
        source_rows, source_lengths = join_rows(
            [[*pair.source_row, source.end_id] for pair in samples], pad_id=source.pad_id
        )
        return PairBatch(
            source=source_rows,
            source_lengths=source_lengths,
            target_in=join_rows([[target.begin_id, *row] for row in target_rows], pad_id=target.pad_id)[0],
            target_out=join_rows([[*row, target.end_id] for row in target_rows], pad_id=target.pad_id)[0],
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


class TranslationEvaluator(WrittenTexts):
    """Translate every sentence, and compute the log loss of the references."""

    def __init__(self, objective: TranslationObjective) -> None:
        super().__init__("source", "reference", "hypothesis")
        self.objective = objective

    def update(self, model: nn.Module, batch: PairBatch) -> None:
        is_token = batch.target_out != self.objective.vocabulary.target.pad_id
        logits = model(batch.source, batch.source_lengths, batch.target_in)
        nll = token_losses(logits, batch.target_out, is_token).nll.double().sum(dim=1)
        found = self.objective.search.run(cast(TranslationModel, model), batch.source, batch.source_lengths)
        hypotheses = [best for best, *_ in found]
        self.add(
            batch.indices,
            batch.sources,
            batch.references,
            self.objective.vocabulary.target.decode([hypothesis.tokens for hypothesis in hypotheses]),
            num_tokens=is_token.sum(dim=1),
            nll=nll,
            hypotheses=hypotheses,
        )

    def result(self) -> dict[str, Any]:
        if not self.indices:
            return {"bleu": 0.0, "nll": 0.0, "perplexity": 1.0, "count": 0}
        scores = corpus_scores(self["hypothesis"], self["reference"], **self._form(), num_resamples=0)
        return {"bleu": scores.bleu.score, **self.likelihood(), "count": len(self.indices)}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        texts = (self["source"], self["hypothesis"], self["reference"])
        tables = translation_tables(*texts, indices=self.indices, **self._form())
        scores = headline_scores(tables.scores) | self.likelihood() | self.cut_off()
        return scores, tables.model_dump(mode="json")

    def _form(self) -> dict[str, Any]:
        """Return how the texts are to be read."""
        preprocessing = self.objective.preprocessing
        return {"language": preprocessing.languages[1], "tokenised": preprocessing.tokenised}

    def signature(self, tables: Mapping[str, Any]) -> dict[str, str]:
        """Return decoding settings, and the tokenisation of each score."""
        search = self.objective.search
        longest = f"at most {MAX_LENGTH_RATIO:g} x source + {MAX_LENGTH_EXTRA} tokens"
        scores = {name: tables["scores"][name] for name in SIGNED}
        return {
            "search": sign_search(search.beam_size, search.length_penalty, search.penalty_form, longest),
            **{name: sign_scoring(score["signature"]) for name, score in scores.items() if score},
        }
