"""Codes of languages are told from other endings, and the wanted two are found or asked for."""

from __future__ import annotations

import pytest

from vitrail.core.errors import DataError
from vitrail.data.text.languages import choose_languages, is_language, languages_in


@pytest.mark.parametrize("code", ["en", "de", "eng", "pt_BR", "zh-Hant", "deu_Latn", "es_419", "zh-Hans-CN"])
def test_codes_with_regions_and_scripts_are_languages(code: str) -> None:
    assert is_language(code)


@pytest.mark.parametrize(
    "text",
    ["txt", "csv", "gz", "jpg", "py", "EN", "english", "is_label", "no_beard", "", "e", "label", "image"],
)
def test_other_endings_and_columns_are_no_languages(text: str) -> None:
    assert not is_language(text)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("corpus.en-de", ("en", "de")),
        ("eng-fra", ("eng", "fra")),
        ("opus.en_fr.clean", ("en", "fr")),
        ("two-way", None),
        ("en-en", None),
        ("rows", None),
    ],
)
def test_a_pair_of_languages_is_read_off_a_name(name: str, expected: tuple[str, str] | None) -> None:
    assert languages_in(name) == expected


def test_two_languages_are_taken_as_they_lie_there_and_said() -> None:
    languages, (finding,) = choose_languages(["de", "en"], None, "here")
    assert languages == ("de", "en")
    assert finding.severity == "info"
    assert "from de into en" in finding.message
    assert "--languages en,de" in finding.remedy


def test_wanted_languages_are_chosen_in_their_order_without_a_word() -> None:
    assert choose_languages(["cs", "de", "en"], ("en", "cs"), "here") == (("en", "cs"), ())
    assert choose_languages(["cs", "de", "en"], ("eng", "ces"), "here") == (("en", "cs"), ())


def test_more_than_two_languages_are_listed_with_the_option_that_chooses() -> None:
    with pytest.raises(DataError, match=r"here has text in 3 languages: cs, de, en") as caught:
        choose_languages(["cs", "de", "en"], None, "here")
    assert "--languages cs,de" in str(caught.value)


def test_a_language_that_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match=r"no text in 'fr'.*that are there: de, en"):
        choose_languages(["de", "en"], ("en", "fr"), "here")


def test_one_language_alone_and_one_into_itself_are_refused() -> None:
    with pytest.raises(DataError, match=r"one language alone \(de\)"):
        choose_languages(["de"], None, "here")
    with pytest.raises(DataError, match="both 'de'"):
        choose_languages(["de", "en"], ("de", "de"), "here")
