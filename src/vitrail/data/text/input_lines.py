"""Lines of text from files or endless streams; a bad line does not spoil the others."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import stat
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, Self, TypeGuard, runtime_checkable

import numpy as np

from vitrail.core.errors import DataError, reading
from vitrail.core.files import PACKED
from vitrail.data.text.lines import check_encoding
from vitrail.data.text.rows import fill_batches

Line = str | DataError
"""A line without its line break, or why it cannot be read."""

MAX_LINE_BYTES = 2**20  # bounds the memory that a file without line breaks takes; no sentence is as long
MAX_READ_CHARACTERS = 2**22  # of the lines read ahead


@runtime_checkable
class ByteLines(Protocol):
    """A file opened in binary mode, or ``sys.stdin.buffer``."""

    def readline(self, size: int = -1, /) -> bytes:
        """Return the rest of a line with its line break, at most so many bytes; empty at the end."""

    def isatty(self) -> bool: ...


def read_lines(stream: ByteLines) -> Iterator[Line]:
    r"""Yield the lines of a UTF-8 stream one by one, as soon as each arrives.

    Lines end with a line feed alone, with or without a carriage return before it, as ``wc -l`` counts them.
    A line that is not UTF-8, or too long, is yielded as its error.

    Raises:
        DataError: the stream cannot be read further, or is UTF-16.

    Example:
        >>> import io
        >>> [type(line).__name__ for line in read_lines(io.BytesIO(b"one\n\xff\n\n"))]
        ['str', 'DataError', 'str']
    """
    number = 0
    while content := _next_bytes(stream):
        number += 1
        if number == 1:
            check_encoding(content, "the text")
            content = content.removeprefix(codecs.BOM_UTF8)
        if len(content) > MAX_LINE_BYTES and not content.endswith(b"\n"):
            yield DataError(
                f"the line has {len(content) + _skip_line(stream):,} bytes",
                expected=f"at most {MAX_LINE_BYTES:,} bytes, one sentence on each line",
                remedy="Divide the text into sentences",
            )
            continue
        try:
            yield content.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            yield DataError(
                f"the line is not UTF-8: byte {error.start + 1} is 0x{content[error.start]:02x}",
                expected="text encoded as UTF-8",
                remedy="Convert it, such as with: iconv -f WINDOWS-1252 -t UTF-8",
            )


class ArrivingLines(Iterator[Line]):
    """The lines of a stream, read in a thread, so that one can ask whether another has arrived.

    Args:
        stream: read to its end and closed, by the thread alone; as for ``read_lines``.
        read_ahead: upper bound on the lines held.

    Raises:
        DataError: as ``read_lines``, after the lines before.
    """

    def __init__(self, stream: io.BufferedReader, *, read_ahead: int) -> None:
        self._read_ahead = read_ahead
        self._held: deque[Line] = deque()
        self._num_characters = 0
        self._changed = threading.Condition()
        self._has_ended = self._is_closed = False
        self._failure: Exception | None = None
        # A thread that waits for a silent pipe must not keep the process from ending.
        self.thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self.thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Line:
        with self._changed:
            self._changed.wait_for(lambda: self._held or self._has_ended)
            if not self._held:
                raise StopIteration if self._failure is None else self._failure
            line = self._held.popleft()
            self._num_characters -= len(str(line))
            self._changed.notify()
            return line

    @property
    def is_waiting(self) -> bool:
        """Whether a line has arrived that was not asked for yet."""
        with self._changed:
            return bool(self._held)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _read(self, stream: io.BufferedReader) -> None:
        failure = None
        try:
            with stream:
                for line in read_lines(stream):
                    if not self._hold(line):
                        break
        except Exception as error:  # raised where the lines are asked for
            failure = error
        with self._changed:
            self._failure, self._has_ended = failure, True
            self._changed.notify()

    def _hold(self, line: Line) -> bool:
        """Keep a line, once there is room; False if no more are wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_room or self._is_closed)
            self._held.append(line)
            self._num_characters += len(str(line))
            self._changed.notify()
            return not self._is_closed

    @property
    def _has_room(self) -> bool:
        return len(self._held) < self._read_ahead and self._num_characters < MAX_READ_CHARACTERS


@contextmanager
def arriving_lines(stream: ByteLines, *, read_ahead: int) -> Iterator[Iterator[Line]]:
    """Read the lines of a stream: of a pipe as ``ArrivingLines``, of a file as ``read_lines``.

    Args:
        stream: of a pipe, nothing may have been read before.
        read_ahead: as for ``ArrivingLines``.
    """
    if not _is_pipe(stream):
        yield read_lines(stream)
        return
    # A file of its own: while a thread reads from sys.stdin, Python cannot close it and end.
    lines = ArrivingLines(os.fdopen(os.dup(stream.fileno()), "rb"), read_ahead=read_ahead)
    try:
        yield lines
    finally:
        lines.close()


def open_lines(source: str | Path) -> AbstractContextManager[ByteLines]:
    """Open a file of lines, decompressed if its name ends in ``.gz``; ``DataError`` if it cannot be read."""
    path = Path(source)
    expected = "a text file with one sentence on each line"
    if path.suffix.lower() in (".csv", ".tsv", ".jsonl", ".parquet"):
        remedy = "Write its column of texts into such a file"
        raise DataError(f"{path} is a table", expected=expected, remedy=remedy)
    remedy = "Correct the path, name - to read standard input, or give a sentence with --text"
    with reading(path, expected=expected, remedy=remedy, error=DataError):
        return gzip.open(path) if path.suffix.lower() == PACKED else path.open("rb")


def _is_pipe(stream: ByteLines) -> TypeGuard[io.BufferedReader]:
    """Tell whether more data may arrive later; compressed streams are read as files."""
    if not isinstance(stream, io.BufferedReader):
        return False
    try:
        return not stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except io.UnsupportedOperation:
        return False


def _next_bytes(stream: ByteLines) -> bytes:
    expected, remedy = "a complete file", "Copy or download it again"
    with reading("the text", done="read to its end", expected=expected, remedy=remedy, error=DataError):
        return stream.readline(MAX_LINE_BYTES + 1)


def _skip_line(stream: ByteLines) -> int:
    count = 0
    while content := _next_bytes(stream):
        count += len(content.removesuffix(b"\n"))
        if content.endswith(b"\n"):
            break
    return count


def plan_batches(rows: dict[int, list[int]], batch_tokens: int) -> list[list[int]]:
    """Group rows of similar length into batches; the batch with the first row comes first.

    Args:
        rows: subwords by the index of their line.
        batch_tokens: subwords of a batch, including padding and ends; a longer row is a batch of its own.

    Returns:
        The line indices of each batch.
    """
    lengths = np.array([len(rows.get(index, ())) + 1 for index in range(max(rows) + 1)])
    order = np.array(sorted(rows, key=lambda index: (-len(rows[index]), index)))
    return sorted(fill_batches(order, lengths, batch_tokens), key=min)


def read_chunks(lines: Iterator[Line], count: int) -> Iterator[list[Line]]:
    """Yield lists of up to ``count`` lines; of arriving lines, those that are there once one is.

    If reading fails, those that were read come before the error.
    """
    chunk: list[Line] = []
    num_characters = 0
    try:
        for line in lines:
            chunk.append(line)
            num_characters += len(str(line))
            is_full = len(chunk) == count or num_characters >= MAX_READ_CHARACTERS
            if is_full or (isinstance(lines, ArrivingLines) and not lines.is_waiting):
                yield chunk
                chunk, num_characters = [], 0
    except DataError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk
