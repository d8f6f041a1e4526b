"""Two files line by line: found by their names, and never a line against the wrong one."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from vitrail.core.errors import DataError
from vitrail.tasks.translation.formats.text_files import find_gap, read, recognises


def write(folder: Path, stem: str, languages: str = "en de", number: int = 7) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for language in languages.split():
        lines = [f"{stem} {language} {index}\n" for index in range(number)]
        (folder / f"{stem}.{language}").write_text("".join(lines))


def test_a_folder_is_divided_by_the_names_of_its_files(tmp_path: Path) -> None:
    for stem, number in (("train", 7), ("dev", 3), ("test_2016", 5)):
        write(tmp_path, stem, number=number)
    raw = read(tmp_path, None)
    assert raw.languages == ("de", "en")
    assert {name: len(split) for name, split in raw.splits.items()} == {
        "train": 7,
        "validation": 3,
        "test": 5,
    }
    assert raw.splits["train"].sources[6] == "train de 6"
    assert raw.splits["train"].targets[6] == "train en 6"
    assert raw.splits["test"].names[0] == "test_2016.de:1"
    assert [finding.check for finding in raw.findings] == ["languages"]


@pytest.mark.parametrize("stem", ["train", "training", "Train.en-de", "train.clean"])
def test_longer_names_of_a_split_are_known(tmp_path: Path, stem: str) -> None:
    write(tmp_path, stem)
    assert list(read(tmp_path, ("en", "de")).splits) == ["train"]


def test_what_two_names_have_in_common_means_these_two(tmp_path: Path) -> None:
    write(tmp_path, "corpus.en-de")
    write(tmp_path, "corpus")
    raw = read(tmp_path / "corpus.en-de", ("en", "de"))
    assert raw.splits["train"].sources[0] == "corpus.en-de en 0"
    assert read(tmp_path / "corpus", ("en", "de")).splits["train"].sources[0] == "corpus en 0"


def test_one_of_two_files_is_the_source(tmp_path: Path) -> None:
    write(tmp_path, "train")
    assert recognises(tmp_path / "train.en", None)
    raw = read(tmp_path / "train.en", None)
    assert raw.languages == ("en", "de")
    assert read(tmp_path / "train.en", ("de", "en")).languages == ("de", "en")


@pytest.mark.parametrize("stem", ["test_2017", "val"])
def test_a_path_that_names_a_test_is_not_divided(tmp_path: Path, stem: str) -> None:
    write(tmp_path, "train")
    write(tmp_path, stem)
    assert "train" not in read(tmp_path / stem, None).splits


def test_gzip_and_plain_files_are_the_same_and_plain_ones_go_first(tmp_path: Path) -> None:
    write(tmp_path, "train")
    expected = read(tmp_path, None).splits["train"].fingerprint
    for language in ("en", "de"):
        path = tmp_path / f"train.{language}"
        (tmp_path / f"train.{language}.gz").write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "train.en").unlink()
    assert read(tmp_path, None).splits["train"].fingerprint == expected
    assert recognises(tmp_path / "train.en.gz", None)
    assert recognises(tmp_path / "train", None)
    (tmp_path / "train.de.gz").write_bytes(b"damaged")
    assert read(tmp_path, None).splits["train"].fingerprint == expected


def test_any_ending_is_a_language_if_it_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "train", "klingon elvish")
    assert not recognises(tmp_path, None)
    assert recognises(tmp_path, ("elvish", "klingon"))
    assert read(tmp_path, ("elvish", "klingon")).splits["train"].sources[0] == "train elvish 0"


def test_files_that_are_not_used_are_named(tmp_path: Path) -> None:
    for stem in ("train", "test_2018", "test_2016", "newstest"):
        write(tmp_path, stem)
    write(tmp_path, "test_2019", "en")
    write(tmp_path, "test_2015", "en fr")
    found = {finding.check: finding for finding in read(tmp_path, ("en", "de")).findings}
    assert found["several-test"].items == ("test_2018",)
    assert "test_2016 alone is used" in found["several-test"].message
    assert found["unread-texts"].items == ("newstest",)
    assert found["unpaired-texts"].items == ("test_2015.en", "test_2019.en")


def test_one_text_without_the_name_of_a_split_is_for_training(tmp_path: Path) -> None:
    write(tmp_path, "Books")
    write(tmp_path, "test")
    raw = read(tmp_path, None)
    assert set(raw.splits) == {"train", "test"}
    assert raw.splits["train"].names[0] == "Books.de:1"
    write(tmp_path, "News")
    with pytest.raises(DataError, match=r"2 texts and none is named train: Books, News"):
        read(tmp_path, None)


def test_other_files_and_single_languages_are_not_recognised(tmp_path: Path) -> None:
    for name in ("train.txt", "train.csv", "labels.en", "x.jpg", "x.xml", ".hidden.en", ".hidden.de"):
        (tmp_path / name).write_text("x\n")
    assert not recognises(tmp_path, None)
    assert not recognises(tmp_path / "labels.en", None)
    assert not recognises(tmp_path / "train.txt", None)
    assert not recognises(tmp_path / "missing" / "train", None)


def test_more_than_two_languages_must_be_chosen(tmp_path: Path) -> None:
    write(tmp_path, "train", "en de fr")
    with pytest.raises(DataError, match=r"3 languages: de, en, fr"):
        read(tmp_path, None)
    assert read(tmp_path, ("fr", "de")).languages == ("fr", "de")
    with pytest.raises(DataError, match=r"no text in 'cs'"):
        read(tmp_path, ("en", "cs"))


def test_files_of_different_length_are_refused_with_the_place_where_they_part(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(5, 90, size=400)
    (tmp_path / "train.en").write_text("".join("a" * length + "\n" for length in lengths))
    kept = np.delete(lengths, 250)
    (tmp_path / "train.de").write_text("".join("b" * (length + length // 9) + "\n" for length in kept))
    with pytest.raises(
        DataError, match=r"train\.en has 400 lines and train\.de has 399; they seem to part near line 25[0-2]"
    ):
        read(tmp_path, ("en", "de"))


def test_unrelated_texts_of_different_length_have_no_place_to_part(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    one, other = generator.integers(5, 90, size=(2, 400)).tolist()
    assert find_gap(one, other[:-3]) is None
    assert find_gap(one, one[:100]) is None
    assert find_gap([], one) is None
    assert find_gap(one[3:], one) == 0
    assert find_gap(one[:-3], one) == 397


def test_blank_lines_at_one_end_are_ignored_and_others_kept(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("one\n\nthree\n\n \n\n")
    (tmp_path / "train.de").write_text("eins\nzwei\ndrei\n")
    split = read(tmp_path, ("en", "de")).splits["train"]
    assert split.sources == ("one", "", "three")


def test_empty_files_are_refused(tmp_path: Path) -> None:
    for language in ("en", "de"):
        (tmp_path / f"train.{language}").write_text("")
    with pytest.raises(DataError, match=r"train\.en and train\.de are empty"):
        read(tmp_path, ("en", "de"))


def test_a_form_feed_does_not_move_one_side(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_bytes("one\x0cand\u2028more\ntwo\n".encode())
    (tmp_path / "train.de").write_bytes(b"\xef\xbb\xbfeins\r\nzwei\r\n")
    split = read(tmp_path, ("en", "de")).splits["train"]
    assert split.sources == ("one\x0cand\u2028more", "two")
    assert split.targets == ("eins", "zwei")
