"""Decode the lines of text files, split at line feeds alone."""

from __future__ import annotations

import codecs
from pathlib import Path

from vitrail.core.errors import DataError, reading
from vitrail.core.files import open_packed, read_file, unpacked_limit

REPLACEMENT = "\ufffd"
"""Replaces bytes that are not UTF-8."""


def read_lines(path: Path) -> list[str]:
    """Read all lines of a UTF-8 file, decompressed if its name ends in ``.gz``.

    Bytes that are not UTF-8 become ``REPLACEMENT``, in their line alone.

    Raises:
        DataError: the file cannot be read, or is UTF-16.
    """
    content = read_content(path)
    check_encoding(content, f"{path}")
    return split_lines(content)


def check_encoding(content: bytes, what: str) -> None:
    """Refuse text in UTF-16, by its byte order mark or the zero byte of its first letter."""
    is_marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if is_marked or b"\0" in content[:2]:
        order = "" if is_marked else "BE" if content.startswith(b"\0") else "LE"
        raise DataError(
            f"{what} is encoded as UTF-16",
            expected="text encoded as UTF-8",
            remedy=f"Convert it, such as with: iconv -f UTF-16{order} -t UTF-8",
        )


def decode_text(content: bytes) -> str:
    """Decode UTF-8, or UTF-16 if the text begins with its byte order mark, as PowerShell writes files."""
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_utf16 else "utf-8-sig")


def read_list(path: Path, *, entry: str) -> list[str]:
    """Read a list with one entry per line; ``DataError`` if a byte is no text: an entry would be lost."""
    expected = f"{entry} in each line"
    with reading(path, expected=expected, remedy="Write the list again", error=DataError):
        return decode_text(read_file(path)).splitlines()


def read_content(path: Path, size: int = -1) -> bytes:
    """Read a file, or its first bytes, decompressed if its name ends in ``.gz``; else ``DataError``."""
    expected = "a complete file that may be read"
    with reading(path, expected=expected, remedy="Copy or download it again", error=DataError):
        limit = unpacked_limit(path)
        with open_packed(path) as file:
            content = file.read(limit + 1 if size < 0 else size)
        if size < 0 and len(content) > limit:
            raise ValueError(f"it unpacks to more than {limit:,} bytes")
        return content


def split_lines(content: bytes) -> list[str]:
    r"""Split text at line feeds, as ``wc -l`` counts; a byte order mark is removed.

    Python's ``str.splitlines`` would also split at form feeds and eight other characters, which occur
    within sentences of crawled text, and move one side against the other.

    >>> split_lines(b"one\x0c\r\ntwo\n")
    ['one\x0c', 'two']
    """
    content = content.removeprefix(codecs.BOM_UTF8)
    if b"\r" in content:
        # a file without any line feed is from before Mac OS X, which ended lines with a carriage return
        content = content.replace(b"\r\n", b"\n") if b"\n" in content else content.replace(b"\r", b"\n")
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        lines = [line.decode(errors="replace") for line in content.split(b"\n")]
    if not lines[-1]:
        lines.pop()
    return lines
