"""Scores of tags that mark spans of words: B-PER I-PER O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

OUTSIDE = "O"


class SpanScores(NamedTuple):
    """Scores of spans, each right only with its kind, first and last word."""

    precision: float
    recall: float
    f1: float


def are_spans(tags: Sequence[str]) -> bool:
    """Return whether tags mark spans: O, B-KIND and I-KIND (Ramshaw and Marcus 1995), also with E- and S-."""
    marked = [tag for tag in tags if tag != OUTSIDE]
    return OUTSIDE in tags and bool(marked) and all(tag[:2] in ("B-", "I-", "E-", "S-") for tag in marked)


def find_spans(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return the kind, first and last word of each span, as the script conlleval does.

    A span begins with B or S, after O or another kind, and after E or S.

    >>> sorted(find_spans(["I-PER", "I-PER", "O", "B-LOC", "B-LOC"]))
    [('LOC', 3, 3), ('LOC', 4, 4), ('PER', 0, 1)]
    """
    spans: list[tuple[str, int, int]] = []
    before = OUTSIDE
    for place, tag in enumerate(tags):
        kind = tag[2:]
        continues = tag[:1] in "IE" and before[:1] in "BI" and before[2:] == kind
        if tag != OUTSIDE and continues:
            spans[-1] = (kind, spans[-1][1], place)
        elif tag != OUTSIDE:
            spans.append((kind, place, place))
        before = tag
    return set(spans)


def score_spans(texts: Sequence[tuple[Sequence[str], Sequence[str]]]) -> SpanScores:
    """Score the spans of all texts together, given the true and the predicted tags of each.

    Source: Tjong Kim Sang and De Meulder 2003, section 2.3.
    """
    num_right = num_true = num_found = 0
    for tags, predicted in texts:
        true, found = find_spans(tags), find_spans(predicted)
        num_right, num_true, num_found = (
            num_right + len(true & found),
            num_true + len(true),
            num_found + len(found),
        )
    precision, recall = num_right / max(num_found, 1), num_right / max(num_true, 1)
    return SpanScores(precision, recall, 2 * num_right / max(num_true + num_found, 1))
