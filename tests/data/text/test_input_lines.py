from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from vitrail.core.errors import DataError
from vitrail.data.text import input_lines
from vitrail.data.text.input_lines import ArrivingLines, arriving_lines, open_lines, read_chunks, read_lines


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


def test_compressed_files_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    compressed = gzip.compress(b"one\ntwo\n")
    (tmp_path / "lines.gz").write_bytes(compressed)
    with open_lines(tmp_path / "lines.gz") as stream:
        assert list(read_lines(stream)) == ["one", "two"]
    (tmp_path / "lines.gz").write_bytes(compressed[:-4])
    with open_lines(tmp_path / "lines.gz") as stream:
        lines = read_lines(stream)
        assert [next(lines), next(lines)] == ["one", "two"]
        with pytest.raises(DataError, match="cannot be read to its end"):
            next(lines)


def test_a_missing_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No such file.*standard input"):
        open_lines(tmp_path / "none.txt")


def test_lines_that_are_there_are_taken_together() -> None:
    lines = ArrivingLines(io.BufferedReader(io.BytesIO(b"1\n2\n3\n4\n5")), read_ahead=9)
    lines.thread.join()

    assert list(read_chunks(lines, 3)) == [["1", "2", "3"], ["4", "5"]]


@pytest.mark.parametrize("bounds", [{"read_ahead": 2}, {"read_ahead": 99, "MAX_READ_CHARACTERS": 2}])
def test_an_endless_stream_is_held_in_part(bounds: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_lines, "MAX_READ_CHARACTERS", bounds.get("MAX_READ_CHARACTERS", 99))
    content = io.BytesIO(b"x\n" * 100)
    lines = ArrivingLines(io.BufferedReader(content, 1), read_ahead=bounds["read_ahead"])

    for number in range(1, 9):
        assert next(lines) == "x"
        assert content.tell() <= 2 * (number + 3)  # two are held, and one waits for room
    lines.close()
    lines.thread.join()
    assert content.closed


def test_what_fails_in_the_thread_is_raised_where_lines_are_asked_for() -> None:
    lines = ArrivingLines(io.BufferedReader(io.BytesIO("one\n".encode("utf-16"))), read_ahead=9)

    for _ in range(2):
        with pytest.raises(DataError, match="UTF-16"):
            next(lines)


def test_files_are_read_without_a_thread(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\ntwo\n")

    for stream in (open_lines(tmp_path / "lines"), io.BytesIO(b"one\ntwo\n")):
        with stream as opened, arriving_lines(opened, read_ahead=9) as lines:
            assert not isinstance(lines, ArrivingLines)
            assert list(lines) == ["one", "two"]
