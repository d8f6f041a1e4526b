"""Rows with or without a header, divided by tabs as they are or by commas in quotes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from vitrail.core.errors import DataError
from vitrail.tasks.translation.formats import PAIR_FORMATS

read, recognises = PAIR_FORMATS["table of pairs"].read, PAIR_FORMATS["table of pairs"].recognises

ROWS = [("A cat.", "Eine Katze."), ('He said "no".', '"Nein", sagte er.'), ("Yes, and no.", "Ja und nein.")]
EN_DE = ("en", "de")


def tabs(rows: list[tuple[str, ...]], *, header: str = "") -> str:
    return "".join("\t".join(row) + "\n" for row in ([(header.replace(",", "\t"),)] if header else []) + rows)


def pairs_of(path: Path, wanted: tuple[str, str] | None = None) -> list[tuple[str, str]]:
    split = read(path, wanted).splits["train"]
    return list(zip(split.sources, split.targets, strict=True))


@pytest.mark.parametrize(
    ("header", "languages"),
    [
        ("en,de", EN_DE),
        ("source,target", ("source", "target")),
        ("src,trg", ("source", "target")),
        ("", ("source", "target")),
    ],
)
def test_columns_are_found_by_the_header_or_without_one(
    tmp_path: Path, header: str, languages: tuple[str, str]
) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(tabs(ROWS, header=header))
    assert recognises(path, None)
    assert read(path, None).languages == languages
    assert pairs_of(path) == ROWS
    assert read(path, None).splits["train"].names[0] == f"rows.tsv:{2 if header else 1}"


def test_wanted_languages_name_the_sides_or_choose_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(tabs(ROWS, header="source,target"))
    assert read(path, EN_DE).languages == EN_DE
    path.write_text(tabs([("x", *row, "y") for row in ROWS], header="id,en,de,fr"))
    assert pairs_of(path, ("de", "en")) == [(target, source) for source, target in ROWS]
    with pytest.raises(DataError, match=r"3 languages: en, de, fr"):
        read(path, None)


def test_columns_named_by_their_sides_may_lie_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(tabs([(target, source) for source, target in ROWS], header="tgt,src"))
    assert pairs_of(path) == ROWS


def test_a_column_id_is_no_language(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(tabs([("7", *row) for row in ROWS], header="id,en,de"))
    assert read(path, None).languages == EN_DE


@pytest.mark.parametrize(
    ("name", "languages"), [("eng-fra.txt", ("eng", "fra")), ("corpus.en-de.tsv", EN_DE)]
)
def test_without_a_header_the_name_of_the_file_tells_the_languages(
    tmp_path: Path, name: str, languages: tuple[str, str]
) -> None:
    (tmp_path / name).write_text(tabs(ROWS))
    assert recognises(tmp_path / name, None)
    assert read(tmp_path / name, None).languages == languages


def test_further_columns_without_a_header_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "deu.txt"  # as sentences of Tatoeba are published
    path.write_text(tabs([(*row, "CC-BY") for row in ROWS]))
    assert pairs_of(path) == ROWS


@pytest.mark.parametrize("delimiter", [",", ";", "|"])
@pytest.mark.parametrize("header", [True, False])
def test_csv_has_quotes_and_any_delimiter(tmp_path: Path, delimiter: str, header: bool) -> None:
    import csv

    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([EN_DE, *ROWS] if header else ROWS)
    assert recognises(path, None)
    assert pairs_of(path) == ROWS


def test_a_quoted_line_end_is_a_space(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('en,de\n"two\nlines",zwei\nthree,drei\n')
    assert pairs_of(path) == [("two lines", "zwei"), ("three", "drei")]
    assert read(path, None).splits["train"].names == ("rows.csv:3", "rows.csv:4")


def test_rows_of_another_width_are_reported_and_what_is_missing_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(tabs([*ROWS, ("alone",), ("a", "b", "c"), ("",)], header="en,de"))
    raw = read(path, EN_DE)
    assert raw.splits["train"].targets[3:] == ("", "b", "")
    (finding,) = raw.findings
    assert finding.check == "odd-rows"
    assert finding.items == ("rows.tsv:5", "rows.tsv:6", "rows.tsv:7")


def test_a_folder_of_tables_is_divided_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(tabs(ROWS, header="en,de"))
    (tmp_path / "test.tsv.gz").write_bytes(gzip.compress(tabs(ROWS[:1], header="de,en").encode()))
    assert recognises(tmp_path, None)
    raw = read(tmp_path, None)
    assert {name: len(split) for name, split in raw.splits.items()} == {"train": 3, "test": 1}
    assert raw.splits["test"].targets == ("A cat.",)  # the columns are found by name
    assert raw.splits["test"].names == ("test.tsv:2",)


def test_a_folder_may_hold_one_table_alone(tmp_path: Path) -> None:
    (tmp_path / "sentences.tsv").write_text(tabs(ROWS))
    assert recognises(tmp_path, None)
    (tmp_path / "more.tsv").write_text(tabs(ROWS))
    assert not recognises(tmp_path, None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "image,label\na.jpg,cat\n"),
        ("a.csv", "file_name,target\na b.jpg,a cat\n"),
        ("a.tsv", "path\tclass\na.jpg\tcat\n"),
        ("a.csv", "a.jpg,cat\nb.jpg,dog\n"),
        ("a.tsv", "images/a b.jpg\ta cat sits\n"),
        ("a.csv", "cat,dog\nbird,fish\n"),
        ("a.txt", "only text here\nand more\n"),
        ("a.tsv", "0\tcat one\n1\tdog two\n"),
        ("a.csv", "image,label,en,de\na.jpg,cat,A cat.,Eine Katze.\n"),
        ("a.tsv", ""),
        ("a.dat", "A cat.\tEine Katze.\n"),
    ],
)
def test_tables_of_images_and_of_other_things_are_not_recognised(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    assert not recognises(tmp_path / name, None)


def test_a_long_table_is_recognised_by_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(tabs(ROWS * 2000))
    assert path.stat().st_size > 1 << 16
    assert recognises(path, None)
    assert len(pairs_of(path)) == 6000


def test_tables_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("one side alone\nand again\n")
    with pytest.raises(DataError, match="one column alone"):
        read(path, None)
    path.write_text("en\tde\n")
    with pytest.raises(DataError, match=r"rows\.tsv in .* has no row"):
        read(path, None)
    path = tmp_path / "rows.csv"
    path.write_text("en,de\n" + "x" * 140_000 + ",y\n")
    with pytest.raises(DataError, match=r"line 2 of .*rows\.csv cannot be read: field larger"):
        read(path, None)
    path.write_text('en,de\nA cat.,Eine Katze.\n"A dog.,Ein Hund.\nA bird.,Ein Vogel.\n')
    assert recognises(path, None)
    with pytest.raises(DataError, match=r"line 3 of .*rows\.csv opens a quote that does not close"):
        read(path, None)
