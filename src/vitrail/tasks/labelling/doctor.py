"""Checks of labelled texts before training: errors, pitfalls, and facts worth knowing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from html import escape
from typing import Any

import numpy as np

from vitrail.data.dataset import Progress
from vitrail.data.findings import Finding, Verdict, counted, judge, number_of
from vitrail.data.image_checks import find_similar_names, find_uneven_classes
from vitrail.data.inspection import Examined
from vitrail.data.text.lines import REPLACEMENT
from vitrail.tasks.classification.doctor import find_duplicates, find_missing_classes
from vitrail.tasks.data_page import DataView, Drawn, plot_counts
from vitrail.tasks.labelling.dataset import TextDataset, TextSplit

MAX_WORDS = 400  # a longer text is cut off by the usual data.max_length


class ExaminedTexts(Examined):
    """A data set of labelled texts."""

    dataset: TextDataset

    @property
    def things(self) -> str:
        return "texts" if self.dataset.labels == "sentence" else "words"

    def rows(self) -> Iterator[tuple[str, str, tuple[str, ...], np.ndarray]]:
        """Yield split, name, parts and labels of each text."""
        for split_name, split in self.dataset.splits.items():
            for row in zip(split.names, split.parts, split.labels, strict=True):
                yield split_name, *row

    @cached_property
    def empty(self) -> dict[str, None]:
        """Names of texts without a word, in order."""
        return dict.fromkeys(name for _, name, parts, _ in self.rows() if not "".join(parts).strip())

    @cached_property
    def undecodable(self) -> dict[str, None]:
        """Names of texts with bytes that are not UTF-8, or in whose labels they are, in order."""
        return dict.fromkeys(
            name
            for _, name, parts, labels in self.rows()
            if any(REPLACEMENT in text for text in (*parts, *(self.class_names[label] for label in labels)))
        )

    @cached_property
    def unfit(self) -> frozenset[str]:
        """Names of texts that are left out."""
        return frozenset((*self.empty, *self.undecodable))

    @cached_property
    def per_class(self) -> dict[str, np.ndarray]:
        usable = self.dataset.without(self.unfit).splits
        return {name: split.count_per_class(len(self.class_names)) for name, split in usable.items()}

    @property
    def equal_groups(self) -> list[list[tuple[str, str, str]]]:
        """Split, name and labels of the usable texts, equal ones together."""
        groups: dict[tuple[str, ...], list[tuple[str, str, str]]] = defaultdict(list)
        for split, name, parts, labels in self.rows():
            if name not in self.unfit:
                called = " ".join(self.class_names[label] for label in labels)
                groups[tuple(part.casefold() for part in parts)].append((split, name, called))
        return [*groups.values()]

    @property
    def counts(self) -> dict[str, Any]:
        texts = {name: len(split) for name, split in self.dataset.splits.items()}
        return {"texts": texts, "labels": self.dataset.labels, **super().counts}


def check_texts(dataset: TextDataset, progress: Progress | None = None) -> Verdict:
    """Examine every text of every split; return findings, errors first, and the texts to leave out."""
    examined = ExaminedTexts(dataset)
    return judge(dataset, examined, CHECKS, exclude=examined.unfit)


def view_texts(dataset: TextDataset) -> DataView:
    """Return what the doctor's page shows of labelled texts."""
    is_text = dataset.labels == "sentence"

    def draw(split: TextSplit, index: int, _: Collection[int]) -> Drawn:
        tagged = (
            f"<ruby>{escape(part)}<rt>{escape(dataset.class_names[label])}</rt></ruby>"
            for part, label in zip(split.parts[index], split.labels[index], strict=True)
        )
        return Drawn(f"<p>{' '.join(tagged)}</p>")

    def count(split: TextSplit) -> list[int]:
        return [len(" ".join(parts).split()) for parts in split.parts]

    return DataView(
        draw,
        labels=lambda split: [set(labels.tolist()) for labels in split.labels],
        by_class=is_text,
        things="texts" if is_text else "words",
        plots=[plot_counts(dataset, count, "words in a text", "texts")],
    )


def find_unfit(examined: ExaminedTexts) -> Iterator[Finding]:
    """Texts without a word or in another encoding, and texts that the model will not read to their end."""
    message, remedy = "without a word", "They are left out"
    yield from counted(examined.empty, "warning", "empty-texts", "text", message, remedy)
    message = "with bytes that are not UTF-8"
    remedy = "They are left out; convert the file, such as with iconv -f WINDOWS-1252 -t UTF-8"
    yield from counted(examined.undecodable, "warning", "undecodable", "text", message, remedy)
    long = [name for _, name, parts, _ in examined.rows() if len(" ".join(parts).split()) > MAX_WORDS]
    message = f"of more than {MAX_WORDS} words"
    remedy = "Raise data.max_length to read them to the end, or divide them"
    yield from counted(long, "warning", "long-texts", "text", message, remedy)


def find_exchanged_columns(examined: ExaminedTexts) -> Iterator[Finding]:
    """More labels than different texts."""
    labels, texts = len(examined.class_names), len({parts for _, _, parts, _ in examined.rows()})
    if examined.dataset.labels == "sentence" and labels > texts:
        yield Finding(
            "error",
            "exchanged-columns",
            f"{number_of(labels, 'label')} for {number_of(texts, 'different text')}: columns seem exchanged",
            "Exchange the names of the columns of texts and of labels",
        )


CHECKS: tuple[Callable[[Any], Iterator[Finding]], ...] = (
    find_unfit,
    find_exchanged_columns,
    find_missing_classes,
    find_similar_names,
    find_uneven_classes,
    find_duplicates,
)
"""In the order of a verdict."""
