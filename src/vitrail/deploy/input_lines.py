"""Lines of text as they come, from files or streams without an end; a bad line spoils no other."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol, runtime_checkable

from vitrail.data.text.lines import GZIP_SUFFIX, UTF_16
from vitrail.errors import DataError

Line = str | DataError
"""A line without its end, or why it cannot be read."""

MAX_LINE_BYTES = 2**20  # bounds the memory that a file without line ends takes; no sentence is as long


@runtime_checkable
class ByteLines(Protocol):
    """What is read of a file opened in binary mode, or of ``sys.stdin.buffer``."""

    def readline(self, size: int = -1, /) -> bytes:
        """Return what is left of a line with its end, at most so many bytes; nothing at the end of all."""
        ...

    def isatty(self) -> bool:
        """Tell whether somebody types the lines."""
        ...


def read_lines(stream: ByteLines) -> Iterator[Line]:
    r"""Yield the lines of a stream of UTF-8 one by one, as soon as each is there.

    Lines end with a line feed alone, with or without a carriage return before it, as ``wc -l`` counts them.
    A line that is not UTF-8, or is too long to be one, is yielded as the error that it is.

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
            if content.startswith(UTF_16):
                raise DataError(
                    "the text is encoded as UTF-16",
                    expected="text encoded as UTF-8",
                    remedy="Convert it, such as with: iconv -f UTF-16 -t UTF-8",
                )
            content = content.removeprefix(codecs.BOM_UTF8)
        if len(content) > MAX_LINE_BYTES and not content.endswith(b"\n"):
            yield _too_long(len(content) + _skip_line(stream))
            continue
        try:
            yield content.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            yield DataError(
                f"the line is not UTF-8: byte {error.start + 1} is 0x{content[error.start]:02x}",
                expected="text encoded as UTF-8",
                remedy="Convert it, such as with: iconv -f WINDOWS-1252 -t UTF-8",
            )


def open_lines(source: str | Path) -> AbstractContextManager[ByteLines]:
    """Open a file of lines, decompressed where its name ends in ``.gz``.

    Raises:
        DataError: there is no such file, or it may not be read.
    """
    path = Path(source)
    try:
        if path.suffix.lower() == GZIP_SUFFIX:
            return gzip.open(path, "rb")
        return path.open("rb")
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}",
            expected="a text file with one sentence on each line",
            remedy="Correct the path, or name - to read standard input",
        ) from None


def keep_open(stream: ByteLines) -> AbstractContextManager[ByteLines]:
    """Return a stream as ``open_lines`` returns files; it stays open afterwards."""
    return nullcontext(stream)


def _next_bytes(stream: ByteLines) -> bytes:
    try:
        return stream.readline(MAX_LINE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"the text cannot be read to its end: {error}",
            expected="a complete file",
            remedy="Copy or download it again",
        ) from None


def _skip_line(stream: ByteLines) -> int:
    """Read to the end of a line, and return how many bytes were left of it."""
    count = 0
    while content := _next_bytes(stream):
        count += len(content.removesuffix(b"\n"))
        if content.endswith(b"\n"):
            break
    return count


def _too_long(size: int) -> DataError:
    return DataError(
        f"the line has {size:,} bytes",
        expected=f"at most {MAX_LINE_BYTES:,} bytes, one sentence on each line",
        remedy="Divide the text into sentences",
    )
