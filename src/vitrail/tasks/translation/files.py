"""Translation of a file or a stream line by line, keeping line numbers aligned."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from vitrail.core.durable import explained
from vitrail.core.errors import ConfigError
from vitrail.data.text.input_lines import ByteLines, arriving_lines, open_lines
from vitrail.tasks.translation.predictor import BATCH_TOKENS, READ_AHEAD, Translation, Translator
from vitrail.tasks.translation.search import Search

STANDARD = "-"
# Line breaks and tabs in a translation must not break the layout.
TO_SPACES = {ord(character): " " for character in "\t\n\r"}

Layout = Literal["text", "scores", "json"]
"""Per line: its translation; score, tab and translation; or everything, as JSON."""


def translate_file(
    translator: Translator,
    source: str | Path | None,
    *,
    standard_input: ByteLines,
    standard_output: Any,
    tell: Callable[[int, str, str], None],
    output: Path | None = None,
    layout: Layout = "text",
    search: Search | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> int:
    """Translate the lines of a file or of standard input, in order; return how many lines failed.

    A line that fails yields an empty line, or a JSON line with the error. With several translations per line,
    each output line begins with the 1-based source line number and a tab. Lines from a terminal or a pipe are
    translated immediately.

    Args:
        source: a UTF-8 file, gzipped if its name ends in ``.gz``; "-" or None for standard input.
        standard_output: a binary file, or ``sys.stdout.buffer``.
        tell: called with the line number, ``"error"`` or ``"warning"``, and the message.

    Raises:
        ConfigError: a number is not positive, or the output is the file that is read.
        DataError: the file cannot be read; what came before is written.
        CheckpointError: the output cannot be written.
    """
    is_standard = source is None or str(source) == STANDARD
    if output is not None and not is_standard and _are_same(output, Path(str(source))):
        raise ConfigError(
            f"{output} would be read and written at once",
            expected="another file for the translations",
            remedy="Choose another output",
        )
    search = translator.search if search is None else search
    read_ahead = 1 if is_standard and standard_input.isatty() else READ_AHEAD
    errors = 0
    with (
        nullcontext(standard_input) if is_standard else open_lines(str(source)) as stream,
        arriving_lines(stream, read_ahead=read_ahead) as lines,
    ):
        translations = translator.search_lines(lines, search, batch_tokens, read_ahead)
        first = [*islice(translations, 1)]  # input that cannot be read leaves a former output as it is
        with _open_output(output, standard_output) as sink:
            for number, translation in enumerate(chain(first, translations), start=1):
                sink.write(_written(number, translation, layout, is_numbered=search.num_best > 1).encode())
                sink.flush()
                for warning in translation.warnings:
                    tell(number, "warning", warning)
                if translation.error is not None:
                    errors += 1
                    tell(number, "error", translation.error)
    return errors


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
def _open_output(path: Path | None, standard: Any) -> Iterator[Any]:
    """Open the output; errors of standard output stay as they are."""
    if path is None:
        yield standard
        return
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            yield file


def _are_same(first: Path, second: Path) -> bool:
    return first.exists() and second.exists() and os.path.samefile(first, second)
