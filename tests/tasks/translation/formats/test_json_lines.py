"""JSON lines in the three shapes in which pairs come."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vitrail.core.errors import DataError
from vitrail.tasks.translation.formats import PAIR_FORMATS

read, recognises = PAIR_FORMATS["JSON lines of pairs"].read, PAIR_FORMATS["JSON lines of pairs"].recognises

ROWS = [("A cat.", "Eine Katze."), ("\u00fcber\u2028all", 'so "gut"')]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize(
    ("shape", "languages"),
    [
        (lambda source, target: {"en": source, "de": target}, ("en", "de")),
        (lambda source, target: {"id": 7, "de": target, "en": source}, ("de", "en")),
        (lambda source, target: {"source": source, "target": target}, ("source", "target")),
        (lambda source, target: {"id": 7, "translation": {"en": source, "de": target}}, ("en", "de")),
    ],
)
def test_three_shapes_are_read(
    tmp_path: Path, shape: Callable[[str, str], dict[str, Any]], languages: tuple[str, str]
) -> None:
    write(tmp_path / "rows.jsonl", [shape(*row) for row in ROWS])
    assert recognises(tmp_path / "rows.jsonl", None)
    raw = read(tmp_path / "rows.jsonl", None)
    split = raw.splits["train"]
    assert raw.languages == languages
    first = 1 if languages[0] == "de" else 0
    assert split.sources == tuple(row[first] for row in ROWS)
    assert split.targets == tuple(row[1 - first] for row in ROWS)
    assert split.names == ("rows.jsonl:1", "rows.jsonl:2")


def test_a_translation_into_one_language_is_a_column_of_text(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", [{"en": "a", "translation": "b", "de": "c"}])
    assert read(tmp_path / "rows.jsonl", None).languages == ("en", "de")


def test_missing_values_are_empty_numbers_are_text_and_line_ends_spaces(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", [{"en": None, "de": "a"}, {"de": "b \n\r\n c"}, {"en": 7, "de": 2.5}])
    split = read(tmp_path / "rows.jsonl", ("en", "de")).splits["train"]
    assert split.sources == ("", "", "7")
    assert split.targets == ("a", "b c", "2.5")


def test_blank_lines_are_skipped_and_do_not_shift_the_names(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl.gz").write_bytes(
        gzip.compress(b'\n{"en": "a", "de": "b"}\n \n{"en": "c", "de": "d"}\n')
    )
    assert recognises(tmp_path, None)
    assert read(tmp_path, None).splits["train"].names == ("train.jsonl:2", "train.jsonl:4")


def test_half_a_character_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"en": "x \\ud83d y", "de": "\\ud83d\\ude00"}\n')
    split = read(tmp_path / "rows.jsonl", None).splits["train"]
    assert split.sources == ("x \ufffd y",)
    assert split.targets == ("\U0001f600",)


@pytest.mark.parametrize(
    "line",
    ['{"image": "a.jpg", "label": "cat"}', '{"step": 1, "loss": 2.5}', "[1]", "no json", "", '{"en": "a"}'],
)
def test_other_lines_are_not_recognised(tmp_path: Path, line: str) -> None:
    (tmp_path / "rows.jsonl").write_text(line + "\n")
    assert not recognises(tmp_path / "rows.jsonl", None)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", r"line 2 of .* is no JSON"),
        ("[1]", r"line 2 of .* is a JSON list"),
        ('{"en": ["a"], "de": "b"}', r"rows\.jsonl:2 holds list in the column 'en'"),
        ('{"en": true, "de": "b"}', r"rows\.jsonl:2 holds bool"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, fault: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"en": "a", "de": "b"}\n' + line + "\n")
    with pytest.raises(DataError, match=fault):
        read(tmp_path / "rows.jsonl", None)


def test_unknown_keys_are_listed(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", [{"english": "a", "german": "b"}])
    with pytest.raises(DataError, match=r"has the columns 'english', 'german'.*its code"):
        read(tmp_path / "rows.jsonl", None)
    assert read(tmp_path / "rows.jsonl", ("english", "german")).splits["train"].targets == ("b",)
