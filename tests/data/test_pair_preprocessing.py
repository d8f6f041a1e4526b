from __future__ import annotations

import pytest

from vitrail.core.errors import ConfigError
from vitrail.data.text_preprocessing import PairPreprocessing


def test_white_space_of_any_kind_becomes_one_space() -> None:
    preprocessing = PairPreprocessing(languages=("en", "de"))

    prepared = preprocessing.prepare(["  two\tdogs\u00a0\u2003run \r\n", "", " \n "])

    assert prepared == ["two dogs run", "", ""]


def test_letters_are_lowered_where_asked_and_nothing_else_is_changed() -> None:
    lowered = PairPreprocessing(languages=("en", "de"), lower_case=True)
    plain = PairPreprocessing(languages=("en", "de"))
    texts = ["Zwei  \u00dcBER \u00bd \ufb01n a\u0308"]

    assert lowered.prepare(texts) == ["zwei \u00fcber \u00bd \ufb01n a\u0308"]
    assert plain.prepare(texts) == ["Zwei \u00dcBER \u00bd \ufb01n a\u0308"]
    assert lowered.lowered(texts) == ["zwei  \u00fcber \u00bd \ufb01n a\u0308"]
    assert plain.lowered(texts) == texts


def test_it_is_stored_with_a_mark_that_tells_it_from_that_of_images() -> None:
    preprocessing = PairPreprocessing(languages=("en", "de"), tokenised=True)

    tree = preprocessing.model_dump(mode="json")

    assert tree == {"task": "translation", "languages": ["en", "de"], "tokenised": True, "lower_case": False}
    assert PairPreprocessing.from_tree(tree) == preprocessing
    with pytest.raises(ConfigError, match="task"):
        PairPreprocessing.from_tree(tree | {"task": "classification"})
