"""Lines are divided at line feeds alone, and bytes that are not UTF-8 damage their own line only."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from vitrail.core.errors import DataError
from vitrail.data.text.lines import read_lines, split_lines

SEPARATORS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"one", ["one"]),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\n\ntwo\n\n", ["one", "", "two", ""]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"one\rtwo\r", ["one", "two"]),
        (b"one\rand\ntwo\n", ["one\rand", "two"]),
        (b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n", ["one", "\ufefftwo"]),
    ],
)
def test_line_ends_of_every_system(content: bytes, lines: list[str]) -> None:
    assert split_lines(content) == lines


@pytest.mark.parametrize("separator", SEPARATORS)
def test_other_separators_stay_within_their_line(separator: str) -> None:
    assert split_lines(f"one{separator}two\nthree\n".encode()) == [f"one{separator}two", "three"]


def test_bytes_that_are_not_utf8_are_replaced_in_their_line() -> None:
    lines = split_lines("f\u00fcr\n".encode() + "f\u00fcr\n".encode("latin-1") + b"last\n")
    assert lines == ["f\u00fcr", "f\ufffdr", "last"]


def test_gzip_is_told_by_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.en.gz").write_bytes(gzip.compress(b"one\ntwo\n", mtime=0))
    assert read_lines(tmp_path / "a.en.gz") == ["one", "two"]


@pytest.mark.parametrize(
    "content", [gzip.compress(b"one\n" * 999, mtime=0)[:-9], b"no gzip", b"\x1f\x8b\x08"]
)
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.en.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.en\.gz cannot be read"):
        read_lines(path)


def test_utf16_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\n", encoding="utf-16")
    with pytest.raises(DataError, match=r"UTF-16.*iconv"):
        read_lines(tmp_path / "a.en")
    with pytest.raises(DataError, match=r"b\.en cannot be read: No such file"):
        read_lines(tmp_path / "b.en")
