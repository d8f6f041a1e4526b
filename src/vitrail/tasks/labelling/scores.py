"""Scores of tags that mark spans of words: B-PER I-PER O."""

from __future__ import annotations

from collections.abc import Sequence

OUTSIDE = "O"


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
        if tag[:1] in "IE" and before[:1] in "BI" and before[2:] == kind:
            spans[-1] = (kind, spans[-1][1], place)
        elif tag != OUTSIDE:
            spans.append((kind, place, place))
        before = tag
    return set(spans)


def score_spans(texts: Sequence[tuple[Sequence[str], Sequence[str]]]) -> dict[str, float]:
    """Return precision, recall and F1 of the spans of all texts, given their true and predicted tags.

    A span is right only with its kind, first and last word (Tjong Kim Sang and De Meulder 2003, section 2.3).
    """
    pairs = [(find_spans(tags), find_spans(predicted)) for tags, predicted in texts]
    num_right = sum(len(true & found) for true, found in pairs)
    num_true, num_found = (sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    return {
        "span_precision": num_right / max(num_found, 1),
        "span_recall": num_right / max(num_true, 1),
        "span_f1": 2 * num_right / max(num_true + num_found, 1),
    }
