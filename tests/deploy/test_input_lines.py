from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from vitrail.deploy import input_lines
from vitrail.deploy.input_lines import open_lines, read_lines
from vitrail.errors import DataError


def test_lines_end_at_line_feeds_alone() -> None:
    content = b"\xef\xbb\xbfone\x0c\xe2\x80\xa8\r\n\ntwo\x85\nlast".replace(b"\x85", "\u0085".encode())

    assert list(read_lines(io.BytesIO(content))) == ["one\x0c\u2028", "", "two\u0085", "last"]


def test_bytes_that_are_not_utf_8_spoil_their_line_alone() -> None:
    first, second, third = read_lines(io.BytesIO(b"one\ncaf\xe9\nthree\n"))

    assert (first, third) == ("one", "three")
    assert isinstance(second, DataError)
    assert "byte 4 is 0xe9" in str(second)


def test_a_line_without_an_end_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_lines, "MAX_LINE_BYTES", 10)

    first, second, third = read_lines(io.BytesIO(b"0123456789\n" + b"x" * 25 + b"\nlast"))

    assert (first, third) == ("0123456789", "last")
    assert isinstance(second, DataError)
    assert "25 bytes" in str(second)


def test_another_encoding_is_named_instead_of_one_error_for_each_line() -> None:
    with pytest.raises(DataError, match=r"UTF-16.*iconv"):
        list(read_lines(io.BytesIO("one\ntwo\n".encode("utf-16"))))


def test_lines_are_yielded_before_the_stream_ends() -> None:
    class Stream(io.BytesIO):
        num_read = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            self.num_read += 1
            return super().readline(size)

    stream = Stream(b"one\ntwo\n")

    assert next(read_lines(stream)) == "one"
    assert stream.num_read == 1


def test_compressed_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "lines.gz").write_bytes(gzip.compress(b"one\ntwo\n"))

    with open_lines(tmp_path / "lines.gz") as stream:
        assert list(read_lines(stream)) == ["one", "two"]


def test_what_comes_before_a_tear_is_read(tmp_path: Path) -> None:
    (tmp_path / "lines.gz").write_bytes(gzip.compress(b"one\ntwo\n")[:-4])

    with open_lines(tmp_path / "lines.gz") as stream:
        lines = read_lines(stream)
        assert [next(lines), next(lines)] == ["one", "two"]
        with pytest.raises(DataError, match="cannot be read to its end"):
            next(lines)


def test_a_missing_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No such file.*standard input"):
        open_lines(tmp_path / "none.txt")
