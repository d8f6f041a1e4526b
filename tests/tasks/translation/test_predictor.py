from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import length_hint
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from making.saved_vit import save_vit
from making.small_translators import ENGLISH, small_translator
from vitrail.core.errors import CheckpointError, ConfigError, DataError
from vitrail.data.text.input_lines import Line, plan_batches
from vitrail.models.decoding import Hypothesis, greedy
from vitrail.tasks.generation import distinct_texts
from vitrail.tasks.translation.predictor import Translation, Translator
from vitrail.tasks.translation.search import Search

LINES = [*ENGLISH, "", "A", "The dog reads a book.", "  ", "Two men play.", *reversed(ENGLISH)]


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(small_translator())


def test_batches_change_neither_translations_nor_their_order(translator: Translator) -> None:
    together = list(translator.translate(LINES, beam_size=3, max_length=7, batch_tokens=40))

    alone = [next(translator.translate([line], beam_size=3, max_length=7)) for line in LINES]
    assert [each.text for each in together] == [each.text for each in alone]
    assert [each.score for each in together] == pytest.approx([each.score for each in alone], rel=1e-4)
    assert [each.source for each in together] == LINES
    assert len({each.text for each in together}) > 3


def test_a_beam_of_one_is_greedy(translator: Translator) -> None:
    (row,) = translator.vocabulary.source.encode([ENGLISH[2]])
    source, lengths = translator.torch_decoder.to_batch([row])
    model, config = translator.model, translator.config

    ((found,),) = translator.decode([row], Search(beam_size=1, max_length=8))

    (expected,) = greedy(
        model,
        model.start(source, lengths),
        begin_id=config.begin_id,
        end_id=config.end_id,
        pad_id=config.pad_id,
        max_lengths=torch.tensor([8]),
    )
    assert found == expected


def test_a_long_line_is_refused_and_the_others_are_translated() -> None:
    translator = Translator(small_translator(), max_source_length=100)
    lines = [ENGLISH[0], "dog " * 10_000, ENGLISH[1]]

    first, second, third = translator.translate(lines, beam_size=1, max_length=4)

    assert second.error is not None
    (row,) = translator.vocabulary.source.encode(["dog " * 10_000])
    assert f"the line has {len(row):,} subwords" in second.error
    assert "Expected at most 100" in second.error
    assert "Divide it" in second.error
    assert second.text == ""
    assert [first, third] == list(translator.translate(ENGLISH[:2], beam_size=1, max_length=4))


def test_a_model_with_a_table_of_positions_is_given_no_more_than_it_has() -> None:
    translator = Translator(small_translator(positions="learned", max_length=9))

    short, long = translator.translate(["A dog", "A dog runs " * 5], beam_size=2)

    assert short.error is None
    assert long.error is not None
    assert "at most 8" in long.error


def test_empty_and_unreadable_lines_keep_their_position(translator: Translator) -> None:
    bad = DataError("the line is torn", expected="a whole one", remedy="Mend it")

    found = list(translator.translate(["", " \t ", ENGLISH[0], bad, ENGLISH[1]], beam_size=1, max_length=4))

    assert found[:2] == [Translation("", source=""), Translation("", source=" \t ")]
    assert found[3] == Translation("", error=str(bad))
    assert (found[2].error, found[4].error) == (None, None)
    assert found[2].text


def test_one_sentence_alone_is_a_list_of_one(translator: Translator) -> None:
    (alone,), (found,) = (translator.translate(each, max_length=4) for each in (ENGLISH[0], [ENGLISH[0]]))
    assert alone == found


def test_lines_before_a_failure_are_translated(translator: Translator) -> None:
    def lines() -> Iterator[Line]:
        yield from ENGLISH[:2]
        raise DataError("the file ends early", expected="all of it", remedy="Copy it again")

    translations = translator.translate(lines(), beam_size=1, max_length=4)

    assert [next(translations).source, next(translations).source] == list(ENGLISH[:2])
    with pytest.raises(DataError, match="ends early"):
        next(translations)


@pytest.mark.parametrize("read_ahead", [1, 3])
def test_a_stream_is_read_no_further_than_asked(translator: Translator, read_ahead: int) -> None:
    lines = iter(ENGLISH * 9)

    translations = translator.translate(lines, beam_size=1, max_length=3, read_ahead=read_ahead)

    assert length_hint(lines) == 45
    for number, translation in enumerate(islice(translations, 7)):
        assert translation.source == ENGLISH[number % len(ENGLISH)]
        assert 45 - length_hint(lines) <= number + read_ahead


def test_a_chunk_of_long_lines_ends_early(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.data.text.input_lines.MAX_READ_CHARACTERS", 20)
    lines = iter(["A dog runs."] * 9)

    next(translator.translate(lines, beam_size=1, max_length=3))

    assert len(list(lines)) == 7


def test_the_best_translations_come_with_falling_scores(translator: Translator) -> None:
    (translation,) = translator.translate([ENGLISH[1]], beam_size=4, num_best=3, max_length=6)

    scores = [translation.score, *(each.score for each in translation.alternatives)]
    assert len(translation.alternatives) == 2
    assert scores == sorted(scores, reverse=True)
    assert len({translation.text, *(each.text for each in translation.alternatives)}) == 3


def test_translations_that_are_spelled_by_other_subwords_are_not_repeated() -> None:
    hypotheses = [Hypothesis((number,), -number, -number, is_finished=True) for number in range(4)]

    found = distinct_texts(["a dog", "a dog", "dogs", "a cat"], hypotheses, 2)

    assert found == [("a dog", 0), ("dogs", -2)]


def test_letters_that_the_vocabulary_lacks_are_warned_of(translator: Translator) -> None:
    russian = "\u0421\u043e\u0431\u0430\u043a\u0430 \u0431\u0435\u0436\u0438\u0442."
    chinese = "\u4e00\u53ea\u72d7\u5728\u96ea\u5730\u91cc\u5954\u8dd1"

    found = list(
        translator.translate([russian, chinese, ENGLISH[0], "A \u0421\u0421\u0421 dog"], beam_size=1)
    )

    for strange in found[:2]:
        assert strange.text
        assert strange.error is None
        assert any("0% of the letters" in warning for warning in strange.warnings)
    for usual in found[2:]:
        assert not any("letters" in warning for warning in usual.warnings)


def test_a_translation_that_does_not_end_says_so(translator: Translator) -> None:
    (translation,) = translator.translate([ENGLISH[1]], beam_size=1, max_length=1)

    is_cut = any("cut off at its maximum of 1 subword" in warning for warning in translation.warnings)
    ((hypothesis,),) = translator.decode(
        translator.vocabulary.source.encode([ENGLISH[1]]), Search(beam_size=1, max_length=1)
    )
    assert is_cut == (not hypothesis.is_finished)


def test_a_saved_translator_is_loaded_from_its_run(translator: Translator, tmp_path: Path) -> None:
    small_translator().save(tmp_path / "run" / "model")

    search = {"beam_size": 2, "max_length": 5}

    found = Translator(tmp_path / "run").translate(ENGLISH, **search)

    assert list(found) == list(translator.translate(ENGLISH, **search))


def test_what_is_no_text_is_refused_by_its_type(translator: Translator) -> None:
    texts: list[Any] = ["A dog", 3]
    with pytest.raises(ConfigError, match=r"3 is of the type int\. Expected text"):
        list(translator.translate(iter(texts)))


def test_a_classifier_is_no_translator(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"not for translation.*vitrail predict"):
        Translator(save_vit(tmp_path / "model"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_size": 0}, "beam size is 0"),
        ({"beam_size": 100_000}, "beam size is 100,000. Expected at most 1,000"),
        ({"num_best": 6}, "6 translations"),
        ({"batch_tokens": 0}, "batch is 0"),
        ({"read_ahead": 0}, "read ahead is 0"),
        ({"max_length": 0}, "maximum length is 0"),
        ({"length_penalty": float("nan")}, "length penalty is nan. Expected a finite number"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_at_once(
    translator: Translator, changes: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        translator.translate(["A dog"], **changes)


def test_errors_and_doubts_are_in_the_json() -> None:
    assert Translation("", error="torn", source="x").to_json() == {"source": "x", "text": "", "error": "torn"}
    assert Translation("y", -0.5, warnings=("odd",), source="x").to_json() == {
        "source": "x",
        "text": "y",
        "score": -0.5,
        "warnings": ["odd"],
    }


@given(
    st.lists(st.integers(min_value=1, max_value=30), min_size=1, max_size=40),
    st.integers(min_value=1, max_value=80),
)
def test_batches_hold_every_row_once_and_not_too_much(lengths: list[int], batch_tokens: int) -> None:
    rows = {3 * place: [7] * length for place, length in enumerate(lengths)}

    batches = plan_batches(rows, batch_tokens)

    assert sorted(place for batch in batches for place in batch) == sorted(rows)
    assert 0 in batches[0]
    for batch in batches:
        padded = max(len(rows[place]) + 1 for place in batch) * len(batch)
        assert padded <= batch_tokens or len(batch) == 1


def test_translations_are_looked_for_as_the_run_was_scored() -> None:
    task = {"name": "translation", "beam_size": 3, "length_penalty": 0.5}
    translator = Translator(small_translator()._replace(about={"task": task}))

    assert translator.search == Search(3, 0.5)
    (by_default,), (asked,) = (
        list(translator.translate(ENGLISH[:1], max_length=7, **asked))
        for asked in ({}, {"beam_size": 3, "length_penalty": 0.5})
    )
    assert by_default == asked
    assert next(translator.translate(ENGLISH[:1], max_length=7, length_penalty=2.0)).score != asked.score
    assert Translator(small_translator()).search == Search()


def test_the_form_of_the_length_penalty_is_the_run_s_or_asked_for() -> None:
    task = {"name": "translation", "beam_size": 2, "length_penalty": 0.6, "penalty_form": "gnmt"}
    scored, plain = (Translator(small_translator()._replace(about={"task": each})) for each in (task, {}))

    (by_default,) = scored.translate(ENGLISH[:1], max_length=7)
    (asked,) = plain.translate(
        ENGLISH[:1], max_length=7, beam_size=2, length_penalty=0.6, penalty_form="gnmt"
    )
    (other,) = scored.translate(ENGLISH[:1], max_length=7, penalty_form="power")
    assert by_default == asked
    assert other.score != asked.score
