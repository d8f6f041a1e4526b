from __future__ import annotations

import pytest

from vitrail.tasks.labelling.scores import are_spans, find_spans, score_spans


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("O O", []),
        ("B-PER I-PER O B-PER", [("PER", 0, 1), ("PER", 3, 3)]),
        ("I-PER I-PER", [("PER", 0, 1)]),  # IOB1 needs no B after O
        ("I-PER B-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("B-PER I-LOC", [("PER", 0, 0), ("LOC", 1, 1)]),  # another kind begins another span
        ("B-PER I-PER E-PER S-LOC", [("PER", 0, 2), ("LOC", 3, 3)]),
        ("B-PER E-PER I-PER", [("PER", 0, 1), ("PER", 2, 2)]),
    ],
)
def test_spans_are_those_of_conlleval(tags, spans):
    assert find_spans(tags.split()) == set(spans)


def test_a_span_is_right_as_a_whole_only():
    true = ["B-PER", "I-PER", "O", "B-LOC", "O", "B-ORG"]
    found = ["B-PER", "I-PER", "O", "B-ORG", "O", "O"]
    # of three spans one is found with its kind and ends; one of the two that were predicted is right
    scores = score_spans([(true, found)])
    assert (scores["span_precision"], scores["span_recall"]) == (1 / 2, 1 / 3)
    assert scores["span_f1"] == pytest.approx(2 / 5)
    assert score_spans([(true, true)])["span_f1"] == 1
    assert score_spans([(["O"], ["O"])])["span_f1"] == score_spans([])["span_f1"] == 0


def test_tags_of_spans_are_told_from_parts_of_speech():
    assert are_spans(["B-PER", "I-PER", "O"])
    assert not are_spans(["NOUN", "VERB", "O"])
    assert not are_spans(["B-PER", "I-PER"])
    assert not are_spans(["O"])
