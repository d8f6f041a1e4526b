"""Labelling: cross entropy and scores of the labels of sentences or of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.data.text.rows import join_rows
from vitrail.data.text.subwords import Subwords
from vitrail.data.text_preprocessing import TextPreprocessing
from vitrail.tasks.classification.objective import ClassificationEvaluator
from vitrail.tasks.labelling.scores import are_spans, score_spans
from vitrail.train.objective import Loss, TensorBatch

NO_LABEL = -1  # subwords that do not begin a word, begin, end and padding
MOST_WORDS = 2**20  # in a text; an evaluated word is numbered by its text and its place


@dataclass(frozen=True)
class TextBatch(TensorBatch):
    """Texts as rows of subwords."""

    tokens: Int[Tensor, "texts tokens"]
    """Begin, subwords, end, and padding."""
    lengths: Int[Tensor, " texts"]
    """Tokens without padding."""
    labels: Int[Tensor, "texts ..."]
    """Of each text; or of each token, ``NO_LABEL`` where no word begins."""
    numbers: Int[Tensor, "texts ..."]
    """Number of each label: the index of its text; of words times ``MOST_WORDS``, plus the word's place."""


class LabellingObjective:
    """Collation, loss and evaluation of a model that labels texts."""

    unit = "labels"

    def __init__(
        self,
        class_names: Sequence[str],
        vocabulary: Subwords,
        preprocessing: TextPreprocessing,
        *,
        label_smoothing: float = 0.0,
    ) -> None:
        self.class_names, self.vocabulary = tuple(class_names), vocabulary
        self.label_smoothing = label_smoothing
        self.of_words = preprocessing.labels == "words"
        self.scores_spans = self.of_words and are_spans(class_names)  # as a whole

    @property
    def best_by(self) -> tuple[str, Literal["max", "min"]]:
        return ("span_f1" if self.scores_spans else "accuracy"), "max"

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> TextBatch:
        tokens, lengths = join_rows([each.encoded.row for each in samples], pad_id=self.vocabulary.pad_id)
        labels = torch.full_like(tokens if self.of_words else lengths, NO_LABEL)
        numbers = torch.zeros_like(labels)
        for row, each in enumerate(samples):
            places = (row, each.encoded.starts) if self.of_words else row
            labels[places] = torch.from_numpy(each.labels)
            first = each.index * MOST_WORDS if self.of_words else each.index
            numbers[places] = first + torch.arange(len(each.labels))
        return TextBatch(tokens, lengths, labels, numbers)

    def loss(self, model: nn.Module, batch: TextBatch) -> Loss:
        """Sum the cross entropy over the labels, in float32."""
        logits, labels, _ = read_labels(model, batch)
        return Loss(
            total=F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing, reduction="sum"),
            count=logits.new_full((), len(labels)),
            parts={"correct": (logits.detach().argmax(dim=-1) == labels).sum().float()},
        )

    def evaluator(self) -> LabellingEvaluator:
        return LabellingEvaluator(self)


def read_labels(
    model: nn.Module, batch: TextBatch
) -> tuple[Float[Tensor, "labels classes"], Int[Tensor, " labels"], Int[Tensor, " labels"]]:
    """Return the logits, labels and numbers of a batch, without the tokens that have none."""
    is_label = batch.labels != NO_LABEL
    logits = model(batch.tokens, batch.lengths)[is_label].float()
    return logits, batch.labels[is_label], batch.numbers[is_label]


class LabellingEvaluator(ClassificationEvaluator):
    """Collect the probabilities of every label, and score them."""

    def __init__(self, objective: LabellingObjective) -> None:
        super().__init__(len(objective.class_names))
        self.objective = objective

    def update(self, model: nn.Module, batch: Any) -> None:
        self.add(*read_labels(model, batch))

    def result(self) -> dict[str, Any]:
        return {**self._spans(), **super().result()}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        scores, tables = super().report()
        return {**self._spans(), **scores}, tables

    def _spans(self) -> dict[str, float]:
        if not self.objective.scores_spans:
            return {}
        state, names = self.state(), self.objective.class_names
        texts: dict[int, tuple[list[str], list[str]]] = {}
        columns = (state["indices"] // MOST_WORDS, state["labels"], state["outputs"].argmax(dim=-1))
        for text, *pair in zip(*(column.tolist() for column in columns), strict=True):
            for tags, label in zip(texts.setdefault(text, ([], [])), pair, strict=True):
                tags.append(names[label])
        return score_spans([*texts.values()])
