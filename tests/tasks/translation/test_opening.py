"""Parallel text is opened whatever it looks like, divided fairly, and refused with a reason."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from making.multi30k import multi30k
from vitrail.core.errors import DataError
from vitrail.tasks.translation import opening as pair_opening
from vitrail.tasks.translation.dataset import PairDataset
from vitrail.tasks.translation.opening import open_pairs, split_by_text
from vitrail.tasks.translation.settings import PairDataSettings

SETTINGS = PairDataSettings(source="x", languages=("en", "de"), test_fraction=0.2, validation_fraction=0.25)


def write(folder: Path, stem: str, number: int = 20) -> None:
    for language in ("en", "de"):
        lines = [f"{stem} {language} {index}\n" for index in range(number)]
        (folder / f"{stem}.{language}").write_text("".join(lines))


def sizes(dataset: PairDataset) -> tuple[int, int, int]:
    return len(dataset.train), len(dataset.validation), len(dataset.test)


def test_missing_splits_are_held_out_of_train(tmp_path: Path) -> None:
    write(tmp_path, "train", 40)
    dataset = open_pairs(tmp_path, settings=SETTINGS)
    assert sizes(dataset) == (24, 8, 8)
    assert dataset.format == "two text files"
    assert dataset.languages == ("en", "de")
    assert dataset.test_origin == "0.2 of the source, seed 0"
    assert dataset.validation_origin == "8 of the training pairs, seed 0"
    everything = [name for split in dataset.splits.values() for name in split.names]
    assert sorted(everything) == sorted(f"train.en:{index}" for index in range(1, 41))
    for split in dataset.splits.values():
        for source, target in zip(split.sources, split.targets, strict=True):
            assert source == target.replace(" de ", " en ")


def test_splits_of_the_source_are_kept(tmp_path: Path) -> None:
    for stem, number in (("train", 9), ("valid", 4), ("test", 3)):
        write(tmp_path, stem, number)
    dataset = open_pairs(tmp_path, settings=SETTINGS)
    assert sizes(dataset) == (9, 4, 3)
    assert dataset.validation_origin == dataset.test_origin == "from the source"


def test_validation_beside_train_alone_is_the_test_as_it_is_for_images(tmp_path: Path) -> None:
    write(tmp_path, "train", 16)
    write(tmp_path, "dev", 5)
    dataset = open_pairs(tmp_path, settings=SETTINGS)
    assert sizes(dataset) == (12, 4, 5)
    assert dataset.test_origin == "the source's validation split"
    assert [finding.check for finding in dataset.findings] == ["validation-as-test"]


@pytest.mark.parametrize("stem", ["test_2017", "val"])
def test_pairs_to_be_tested_alone_are_all_tested(tmp_path: Path, stem: str) -> None:
    write(tmp_path, stem, 5)
    for source in (tmp_path, tmp_path / stem, tmp_path / f"{stem}.en"):
        assert sizes(open_pairs(source, settings=SETTINGS)) == (0, 0, 5)


def test_a_column_of_splits_divides_one_table(tmp_path: Path) -> None:
    marks = ["train"] * 3 + ["dev", "train", "test"]
    lines = [f"{number} cats\t{number} Katzen\t{mark}" for number, mark in enumerate(marks)]
    file = tmp_path / "cats.tsv"
    file.write_text("\n".join(["en\tde\tsplit", *lines, "6 cats\t\ttest\tone cell more"]))
    dataset = open_pairs(file)
    assert dataset.train.sources == ("0 cats", "1 cats", "2 cats", "4 cats")
    assert dataset.validation.names == ("cats.tsv:5",)
    assert dataset.test.targets == ("5 Katzen", "")
    assert [finding.check for finding in dataset.findings].count("odd-rows") == 1
    file.write_text(file.read_text().replace("dev", "vall"))
    with pytest.raises(DataError, match=r"cats.tsv:5 belongs to a split named 'vall'"):
        open_pairs(file)


def test_opening_twice_gives_the_same_splits_and_another_seed_others(tmp_path: Path) -> None:
    write(tmp_path, "train", 40)
    one, same = (open_pairs(tmp_path, settings=SETTINGS) for _ in range(2))
    other = open_pairs(tmp_path, settings=SETTINGS.with_changes({"split_seed": 1}))
    assert one.fingerprint == same.fingerprint
    assert one.test.names == same.test.names != other.test.names
    assert one.validation.names == same.validation.names


def test_a_carved_test_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_opening, "MAX_TEST", 5)
    write(tmp_path, "train", 40)
    dataset = open_pairs(tmp_path, settings=SETTINGS.with_changes({"max_validation": 3}))
    assert sizes(dataset) == (32, 3, 5)
    assert [finding.check for finding in dataset.findings] == ["bounded-test"]


@hypothesis_settings(max_examples=80, deadline=None)
@given(
    texts=st.lists(st.sampled_from("abcdefg"), max_size=40),
    fraction=st.floats(0.01, 0.9),
    seed=st.integers(0, 50),
)
def test_equal_sentences_are_on_one_side(texts: list[str], fraction: float, seed: int) -> None:
    padded = [text + " " * (index % 2) for index, text in enumerate(texts)]
    kept, held = split_by_text(padded, fraction, seed=seed, max_held=1000)
    assert sorted([*kept, *held]) == list(range(len(texts)))
    assert not {texts[index] for index in kept} & {texts[index] for index in held}
    assert len(held) <= max(round(fraction * len(texts)), 1)
    smallest = min(Counter(texts).values(), default=0)
    if len(set(texts)) > 1 and smallest <= max(round(fraction * len(texts)), 1):
        assert len(held) > 0
        assert len(kept) > 0


def test_distinct_sentences_are_divided_exactly() -> None:
    kept, held = split_by_text([str(index) for index in range(100)], 0.13, seed=3, max_held=1000)
    assert (len(kept), len(held)) == (87, 13)
    assert len(split_by_text([str(index) for index in range(100)], 0.5, seed=3, max_held=7)[1]) == 7
    assert not len(split_by_text(["a", "b"], 0.0, seed=3, max_held=7)[1])
    assert not len(split_by_text(["a", "b"], 0.5, seed=3, max_held=0)[1])
    assert not len(split_by_text(["a", "a"], 0.5, seed=3, max_held=7)[1])


def test_without_settings_what_lies_there_decides(tmp_path: Path) -> None:
    write(tmp_path, "train", 40)
    dataset = open_pairs(tmp_path)
    assert dataset.languages == ("de", "en")
    assert sizes(dataset) == (30, 2, 8)
    assert dataset.source == str(tmp_path)
    assert [finding.check for finding in dataset.findings] == ["languages"]


def test_what_is_not_there_and_what_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no parallel text.*current folder"):
        open_pairs(tmp_path / "missing")
    with pytest.raises(DataError, match="there is no parallel text ''"):
        open_pairs("")
    with pytest.raises(DataError, match=r"no parallel text in a known format.*train\.en and train\.de"):
        open_pairs(tmp_path)
    (tmp_path / "notes.txt").write_text("words\n")
    with pytest.raises(DataError, match=r"notes\.en and notes\.de"):
        open_pairs(tmp_path / "notes.txt")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError, match="The file is empty"):
        open_pairs(tmp_path / "notes.txt")


@pytest.mark.parametrize("source", ["~no-such-user/corpus", "x" * 5000])
def test_paths_that_cannot_be_looked_at_are_refused(source: str) -> None:
    with pytest.raises(DataError, match="cannot be opened"):
        open_pairs(source)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.jsonl", "{\n", "line 1 of .* is not JSON"),
        ("a.tsv", "one\ntwo\n", "one column alone"),
        ("a.parquet", "x", "cannot be read as a table"),
    ],
)
def test_a_table_that_is_not_recognised_says_why(tmp_path: Path, name: str, content: str, fault: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=fault):
        open_pairs(tmp_path / name)


def test_names_of_the_hub_reach_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = []

    def load_dataset(name: str, config: str | None = None) -> datasets.Dataset:
        asked.append((name, config))
        return datasets.Dataset.from_list([{"translation": {"en": str(i), "de": str(i)}} for i in range(10)])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    dataset = open_pairs("hf:owner/books/de-en", settings=SETTINGS)
    assert sizes(dataset) == (6, 2, 2)
    assert sizes(open_pairs("owner/books", settings=SETTINGS)) == (6, 2, 2)
    assert asked == [("owner/books", "de-en"), ("owner/books", None)]


def test_a_hundred_thousand_lines_are_read_in_a_moment(tmp_path: Path) -> None:
    words = np.random.default_rng(0).integers(0, 5000, size=(100_000, 2))
    for language in ("en", "de"):
        lines = "\n".join(f"{language}{row[0]} some more words {row[1]}" for row in words.tolist())
        (tmp_path / f"train.{language}").write_text(lines)
    start = time.process_time()
    dataset = open_pairs(tmp_path, settings=SETTINGS)
    assert time.process_time() - start < 2.0  # 0.3 s measured
    assert sum(sizes(dataset)) == 100_000


def test_multi30k_has_its_published_sizes(shared_data: Path) -> None:
    multi30k(shared_data, "train.en")  # skips where there is none
    folder = shared_data / "multi30k"
    dataset = open_pairs(folder, settings=PairDataSettings(source=str(folder), languages=("en", "de")))
    assert sizes(dataset) == (29_000, 1_014, 1_000)
    assert dataset.validation_origin == dataset.test_origin == "from the source"
    assert dataset.test.names[0] == "test_2016_flickr.en:1"
    assert not dataset.findings
    with pytest.raises(DataError, match="4 languages: cs, de, en, fr"):
        open_pairs(folder)
