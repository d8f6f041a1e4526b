"""Translations of a file or a stream, written line by line, so that line numbers on both sides agree."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from vitrail.core.durable import explained
from vitrail.core.errors import ConfigError
from vitrail.data.text.input_lines import ByteLines, arriving_lines, keep_open, open_lines
from vitrail.tasks.translation.predictor import BATCH_TOKENS, READ_AHEAD, Translation, Translator
from vitrail.tasks.translation.search import Search

STANDARD = "-"
# Whatever a model writes, lines stay lines and columns stay columns.
TO_SPACES = {ord(character): " " for character in "\t\n\r"}

Layout = Literal["text", "scores", "json"]
"""What is written of each line: its translation; score, tab and translation; or everything, as JSON."""


@runtime_checkable
class ByteSink(Protocol):
    """What is written to: a file opened in binary mode, or ``sys.stdout.buffer``."""

    def write(self, content: bytes, /) -> Any:
        """Take some bytes."""
        ...

    def flush(self) -> None:
        """Hand on what was taken."""
        ...


class TranslatedLines(NamedTuple):
    """What became of the lines of a file."""

    lines: int
    """How many there were."""
    errors: int
    """How many of them could not be translated."""


def translate_file(
    translator: Translator,
    source: str | Path | None,
    *,
    standard_input: ByteLines,
    standard_output: ByteSink,
    tell: Callable[[int, str, str], None],
    output: Path | None = None,
    layout: Layout = "text",
    search: Search | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> TranslatedLines:
    """Translate the lines of a file or of standard input, in order, one line for each.

    A line that cannot be translated leaves an empty line, or in JSON one with its error. Where several
    translations of each line are wanted, every line that is written begins with the number of its source
    line, from 1, and a tab. Lines that are typed or come through a pipe do not wait for others.

    Args:
        source: a file of UTF-8, compressed where its name ends in ``.gz``; "-" or None for standard input.
        standard_input: what is read where no file is named; of a pipe, nothing may have been read before.
        standard_output: what is written to where no file is named.
        tell: called with the number of a line, ``"error"`` or ``"warning"``, and what is to be said of it.
        output: a file that is written instead of standard output; it grows line by line.
        search: how translations are looked for.
        batch_tokens: subwords of one batch, its padding counted.

    Raises:
        ConfigError: a number is not positive, or the output is the file that is read.
        DataError: the file cannot be read; what came before is written.
        CheckpointError: the output cannot be written.
    """
    is_standard = source is None or str(source) == STANDARD
    if output is not None and not is_standard:
        _check_distinct(output, Path(str(source)))
    search = translator.search if search is None else search
    read_ahead = 1 if is_standard and standard_input.isatty() else READ_AHEAD
    errors = number = 0
    with (
        keep_open(standard_input) if is_standard else open_lines(str(source)) as stream,
        arriving_lines(stream, read_ahead=read_ahead) as lines,
    ):
        translations = translator.translate(
            lines,
            beam_size=search.beam_size,
            length_penalty=search.length_penalty,
            num_best=search.num_best,
            max_length=search.max_length,
            batch_tokens=batch_tokens,
            read_ahead=read_ahead,
        )
        with _open_output(output, standard_output) as write:
            for number, translation in enumerate(translations, start=1):
                write(_written(number, translation, layout, is_numbered=search.num_best > 1).encode())
                for warning in translation.warnings:
                    tell(number, "warning", warning)
                if translation.error is not None:
                    errors += 1
                    tell(number, "error", translation.error)
    return TranslatedLines(number, errors)


def _written(number: int, translation: Translation, layout: Layout, *, is_numbered: bool) -> str:
    if layout == "json":
        return json.dumps({"line": number} | translation.to_json(), ensure_ascii=False) + "\n"
    lines = []
    for text, score in [(translation.text, translation.score), *translation.alternatives]:
        cells = [str(number)] if is_numbered else []
        if layout == "scores":
            cells.append("" if translation.error is not None else f"{score:.4f}")
        cells.append(text.translate(TO_SPACES))
        lines.append("\t".join(cells) + "\n")
    return "".join(lines)


@contextmanager
def _open_output(path: Path | None, standard: ByteSink) -> Iterator[Callable[[bytes], None]]:
    """Give a function that writes and flushes; the errors of standard output are the caller's."""
    if path is None:

        def write(content: bytes) -> None:
            standard.write(content)
            standard.flush()

        yield write
        return
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    with file:

        def write_to_file(content: bytes) -> None:
            with explained(path):
                file.write(content)
                file.flush()

        yield write_to_file


def _check_distinct(output: Path, source: Path) -> None:
    if output.exists() and source.exists() and os.path.samefile(output, source):
        raise ConfigError(
            f"{output} is to be read and written at once",
            expected="another file for the translations",
            remedy="Choose another output",
        )
