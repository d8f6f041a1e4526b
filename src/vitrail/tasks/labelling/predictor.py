"""Inference with a model that labels texts: sentences in, labels of them or of their words out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.text.input_lines import Line
from vitrail.data.text.rows import join_rows
from vitrail.data.text.subwords import vocabulary_from_files
from vitrail.data.text_preprocessing import TextPreprocessing
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.answer_files import FileResults
from vitrail.tasks.classification.predictor import Prediction
from vitrail.tasks.labelling.samples import EncodedText, encode_text
from vitrail.tasks.predicting import (
    Results,
    answer_in_order,
    check_positive,
    chunks_of,
    device_or_default,
    open_in_torch,
    several,
    text_of,
)

WORD = re.compile(r"\w+(?:[-'.@]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class LabelledText:
    """The labels of one text, or an error."""

    text: str
    parts: tuple[Prediction, ...] = ()
    """The most probable labels of what has one, its ``source``: the text, or each of its words."""
    is_of_words: bool = False
    """Whether each word has a label."""
    error: str | None = None
    """Why the text could not be labelled."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The most probable label of each part."""
        return tuple(part.label for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        if self.error is not None:
            return {"text": self.text, "error": self.error}
        trees = [part.to_json() for part in self.parts]
        words = [{"word": tree.pop("source"), **tree} for tree in trees]
        return {"text": self.text, **({"words": words} if self.is_of_words else trees[0])}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a row for each label of the text or of its words; see ``tasks.predicting.Results``."""
        labels: list[tuple[Any, ...]] = [
            (part.source, *score) for part in self.parts for score in part.scores
        ]
        return [
            {"text": self.text, "part": part, "label": name, "probability": share, "error": self.error}
            for part, name, share in labels or [(None, None, None)]
        ]


class Labeller:
    """Label texts, or each of their words, with a trained model.

    Args:
        source: a run directory, the folder of a saved model, a published model, or a loaded one.
        device: by default a GPU, if there is one.

    Raises:
        CheckpointError: the source holds no usable model, or none that labels texts.

    Example:
        >>> labeller = Labeller("runs/reviews")  # doctest: +SKIP
        >>> labeller.label(["What a film!"])[0].labels  # doctest: +SKIP
        ('positive',)
    """

    def __init__(
        self,
        source: str | Path | LoadedModel,
        *,
        device: str | torch.device | None = None,
        batch_size: int = 32,
    ) -> None:
        check_positive("the batch size", batch_size, "Choose 32")
        self.device, self.batch_size = device_or_default(device), batch_size
        loaded = open_in_torch(source, "labelling", self.device)
        self.model: Any = loaded.model
        self.preprocessing = TextPreprocessing.from_tree(loaded.preprocessing)
        self.is_of_words = self.preprocessing.labels == "words"
        self.vocabulary = vocabulary_from_files(loaded.files)
        self.class_names = tuple(loaded.class_names)

    def label(self, texts: Iterable[Line], *, top: int = 1) -> Results[LabelledText]:
        """Label texts in order; one that cannot be labelled gets an error instead of raising.

        Args:
            texts: sentences, or one alone, or read errors, as ``read_lines`` yields.
            top: number of labels of each part.

        Raises:
            ConfigError: something is no text, or the number is not positive.
        """
        check_positive("the number of labels", top)
        return Results(
            answer_in_order(
                chunks_of([*several(texts)], self.batch_size),
                read=self.encode,
                run=lambda lines, encoded: self._label(list(map(str, lines)), encoded, top),
                failed=lambda line, error: LabelledText(line if isinstance(line, str) else "", error=error),
            )
        )

    def parts(self, text: str) -> tuple[str, ...]:
        """Return what gets a label: the text, or its words and punctuation marks."""
        return tuple(WORD.findall(text)) if self.is_of_words else (text,)

    def encode(self, line: Line) -> EncodedText:
        """Cut a text into subwords.

        Raises:
            DataError: it holds no word, or too many; or the read error that it is.
        """
        text = text_of(line)
        shown = repr(text if len(text) < 60 else text[:57] + "...")
        return encode_text(self.parts(text), self.vocabulary, self.preprocessing, name=f"the text {shown}")

    @torch.inference_mode()
    def probabilities(self, rows: Sequence[Sequence[int]]) -> Float[Tensor, "texts *tokens classes"]:
        """Return the probabilities of each label for rows of subwords with begin and end, on the CPU."""
        tokens, lengths = join_rows(rows, pad_id=self.vocabulary.pad_id)
        logits = self.model(tokens.to(self.device), lengths.to(self.device))
        return logits.float().softmax(dim=-1).cpu()

    @torch.inference_mode()
    def embed(self, text: str) -> tuple[list[str], Float[Tensor, "tokens dim"]]:
        """Return the subwords of a text, begin and end included, and the contextual embedding of each."""
        row = self.encode(text).row
        tokens, lengths = join_rows([row], pad_id=self.vocabulary.pad_id)
        states = self.model.states(tokens.to(self.device), lengths.to(self.device))
        return self.vocabulary.pieces(row), states[0].float().cpu()

    def _label(
        self, texts: Sequence[str], encoded: Sequence[EncodedText], top: int
    ) -> Iterator[LabelledText]:
        found = self.probabilities([each.row for each in encoded])
        for index, (text, each) in enumerate(zip(texts, encoded, strict=True)):
            rows = found[index, each.starts] if self.is_of_words else found[[index]]
            parts = (
                Prediction.most_probable(part, row, self.class_names, top)
                for part, row in zip(self.parts(text), rows, strict=True)
            )
            yield LabelledText(text, tuple(parts), self.is_of_words)


def label_results(found: Sequence[LabelledText]) -> FileResults:
    """Return labels in every output format: a row for each label of each text or word."""
    rows, table = list[tuple[str, str, str]](), [("line", "text", "label", "probability")]
    for number, each in enumerate(found, start=1):
        if each.error:
            table.append((str(number), each.text, "", ""))
        for part in each.parts:
            for name, share in part.scores:
                rows.append((part.source, name, f"{share:.1%}"))
                table.append((str(number), part.source, name, f"{share:.6f}"))
    return FileResults(
        tree=[{"line": number, **each.to_json()} for number, each in enumerate(found, 1)],
        columns=("text", "label", "probability"),
        rows=rows,
        errors=[(f"line {number}", each.error) for number, each in enumerate(found, 1) if each.error],
        table=table,
        lines=[" ".join(each.labels) for each in found],
    )
