"""Translation: token cross entropy, evaluated as decoded text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from vitrail.data.pair_preprocessing import PairPreprocessing
from vitrail.data.text.signature import sign_scoring, sign_search
from vitrail.data.text.subwords import PairVocabulary
from vitrail.data.text.tensors import pack_texts, unpack_texts
from vitrail.models.contract import TranslationModel
from vitrail.models.decoding import USUAL_PATIENCE, Hypothesis, beam_search, greedy
from vitrail.train.losses import token_losses
from vitrail.train.objective import Loss, TensorBatch

LARGEST_EXPONENT = 700.0  # the largest exponent of a finite float64
TEXTS = ("source", "reference", "hypothesis")
SIGNED = ("bleu", "chrf", "bleu_tokenised")
NUMBERS = {"num_tokens": torch.int64, "nll": torch.float64, "is_finished": torch.bool}


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
        source_rows, target_rows = (
            [pair.source_row for pair in samples],
            [pair.target_row for pair in samples],
        )
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


class Translated(NamedTuple):
    """The evaluation of one pair; its fields are those of ``TEXTS`` and ``NUMBERS``."""

    source: str
    reference: str
    """Reference translation."""
    hypothesis: str
    """Generated translation."""
    num_tokens: int
    """Reference subwords including the end."""
    nll: float
    """Log loss of the reference, in nats."""
    is_finished: bool
    """Whether the generated translation ended by itself."""


class TranslationEvaluator:
    """Translate every sentence, and compute the log loss of the references."""

    def __init__(self, objective: TranslationObjective) -> None:
        self.objective = objective
        self._translated: dict[int, Translated] = {}

    def update(self, model: nn.Module, batch: PairBatch) -> None:
        is_token = batch.target_out != self.objective.vocabulary.target.pad_id
        logits = model(batch.source, batch.source_lengths, batch.target_in)
        nll = token_losses(logits, batch.target_out, is_token).nll.double().sum(dim=1)
        hypotheses = self._decode(cast(TranslationModel, model), batch)
        self._add(
            batch.indices.tolist(),
            batch.sources,
            batch.references,
            self.objective.vocabulary.target.decode([hypothesis.tokens for hypothesis in hypotheses]),
            is_token.sum(dim=1).tolist(),
            nll.tolist(),
            [hypothesis.is_finished for hypothesis in hypotheses],
        )

    def state(self) -> dict[str, Tensor]:
        """Return what was collected, in source order and without duplicates.

        Scores are therefore independent of batch size and number of processes.
        """
        pairs = self._pairs()
        state = {"indices": torch.tensor(sorted(self._translated), dtype=torch.int64)}
        for name in TEXTS:
            state |= pack_texts(name, [getattr(pair, name) for pair in pairs])
        for name, dtype in NUMBERS.items():
            state[name] = torch.tensor([getattr(pair, name) for pair in pairs], dtype=dtype)
        return state

    def absorb(self, state: dict[str, Tensor]) -> None:
        texts = [unpack_texts(name, state) for name in TEXTS]
        numbers = [state[name].tolist() for name in NUMBERS]
        self._add(state["indices"].tolist(), *texts, *numbers)

    def result(self) -> dict[str, Any]:
        """Return BLEU and the mean log loss per subword."""
        from vitrail.tasks.translation.scores import corpus_scores

        pairs = self._pairs()
        if not pairs:
            return {"bleu": 0.0, "nll": 0.0, "perplexity": 1.0, "count": 0}
        preprocessing = self.objective.preprocessing
        scores = corpus_scores(
            [pair.hypothesis for pair in pairs],
            [pair.reference for pair in pairs],
            language=preprocessing.languages[1],
            tokenised=preprocessing.tokenised,
            num_resamples=0,
        )
        return {"bleu": scores.bleu.score, **_likelihood(pairs), "count": len(pairs)}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the headline scores, and the tables behind them as plain JSON values.

        Raises:
            DataError: nothing was evaluated.
        """
        from vitrail.tasks.translation.scores import headline_scores, translation_tables

        pairs, preprocessing = self._pairs(), self.objective.preprocessing
        tables = translation_tables(
            [pair.source for pair in pairs],
            [pair.hypothesis for pair in pairs],
            [pair.reference for pair in pairs],
            indices=sorted(self._translated),
            language=preprocessing.languages[1],
            tokenised=preprocessing.tokenised,
            with_tokenised_bleu=True,
        )
        cut_off = {"cut_off": sum(not pair.is_finished for pair in pairs) / len(pairs)}
        return headline_scores(tables.scores) | _likelihood(pairs) | cut_off, tables.model_dump(mode="json")

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
        state = model.start(batch.source, batch.source_lengths)
        max_lengths = (batch.source_lengths * objective.max_length_ratio).long() + objective.max_length_extra
        if objective.beam_size == 1:
            return greedy(
                model,
                state,
                begin_id=target.begin_id,
                end_id=target.end_id,
                pad_id=target.pad_id,
                max_lengths=max_lengths,
            )
        found = beam_search(
            model,
            state,
            begin_id=target.begin_id,
            end_id=target.end_id,
            pad_id=target.pad_id,
            max_lengths=max_lengths,
            beam_size=objective.beam_size,
            length_penalty=objective.length_penalty,
            patience=USUAL_PATIENCE,
        )
        return [best for (best,) in found]

    def _add(self, indices: Sequence[int], *columns: Sequence[Any]) -> None:
        for index, *values in zip(indices, *columns, strict=True):
            self._translated.setdefault(index, Translated(*values))

    def _pairs(self) -> list[Translated]:
        """Return what was collected, in source order."""
        return [self._translated[index] for index in sorted(self._translated)]


def _likelihood(pairs: Sequence[Translated]) -> dict[str, float]:
    """Return the mean log loss per subword over all pairs, and the perplexity."""
    nll = math.fsum(pair.nll for pair in pairs) / sum(pair.num_tokens for pair in pairs)
    return {"nll": nll, "perplexity": math.exp(min(nll, LARGEST_EXPONENT))}


def _pad(rows: Sequence[Sequence[int]], pad_id: int) -> Int[Tensor, "batch tokens"]:
    """Pad rows of subwords to the longest one."""
    lengths = np.array([len(row) for row in rows])
    padded = np.full((len(rows), lengths.max()), pad_id, dtype=np.int64)
    padded[np.arange(lengths.max()) < lengths[:, None]] = [*chain.from_iterable(rows)]
    return torch.from_numpy(padded)
