from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from making.small_translators import ENGLISH, small_translator
from vitrail.core.errors import CheckpointError, ConfigError, DataError
from vitrail.tasks.translation.files import Layout, translate_file
from vitrail.tasks.translation.predictor import Translator
from vitrail.tasks.translation.search import Search

SEARCH = Search(beam_size=2, max_length=5)
GREEDY = Search(beam_size=1, max_length=5)


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(small_translator())


class Told(list[tuple[int, str, str]]):
    def __call__(self, number: int, kind: str, message: str) -> None:
        self.append((number, kind, message))

    def of(self, kind: str) -> list[int]:
        return [number for number, found, _ in self if found == kind]


def run(
    translator: Translator,
    content: bytes = b"",
    *,
    source: str | Path | None = "-",
    layout: Layout = "text",
    search: Search = SEARCH,
    output: Path | None = None,
) -> tuple[list[str], int, Told]:
    written, told = io.BytesIO(), Told()
    errors = translate_file(
        translator,
        source,
        standard_input=io.BytesIO(content),
        standard_output=written,
        tell=told,
        output=output,
        layout=layout,
        search=search,
    )
    return written.getvalue().decode().split("\n"), errors, told


def expected(translator: Translator, lines: tuple[str, ...]) -> list[str]:
    return [each.text for each in translator.translate(lines, beam_size=2, max_length=5)]


def test_every_line_has_its_line_and_errors_have_numbers(translator: Translator) -> None:
    one, two = ENGLISH[0].encode(), ENGLISH[1].encode()

    lines, errors, told = run(translator, one + b"\n\xff\xfe\xfd\n\n" + two + b"\n")

    assert [lines[0], lines[3]] == expected(translator, ENGLISH[:2])
    assert [lines[1], lines[2], lines[4:]] == ["", "", [""]]
    assert errors == 1
    assert told.of("error") == [2]


def test_scores_stand_before_the_translations(translator: Translator) -> None:
    lines, _, _ = run(translator, (ENGLISH[0] + "\n").encode() + b"\xff\n", layout="scores")

    score, text = lines[0].split("\t")
    (translation,) = translator.translate(ENGLISH[:1], beam_size=2, max_length=5)
    assert float(score) == pytest.approx(translation.score, abs=1e-4)
    assert text == translation.text
    assert lines[1] == "\t"


def test_several_translations_are_numbered_and_json_says_everything(translator: Translator) -> None:
    search = Search(beam_size=3, num_best=2, max_length=5)

    lines, errors, _ = run(translator, "\n".join(ENGLISH[:2]).encode(), search=search)
    tree, _, _ = run(translator, ENGLISH[0].encode() + b"\n\xff", layout="json", search=search)

    assert errors == 0
    assert [line.split("\t")[0] for line in lines[:-1]] == ["1", "1", "2", "2"]
    first, second = json.loads(tree[0]), json.loads(tree[1])
    assert (first["line"], first["source"]) == (1, ENGLISH[0])
    assert len(first["alternatives"]) == 1
    assert (second["line"], second["text"]) == (2, "")
    assert "not UTF-8" in second["error"]


def test_a_file_is_read_and_another_written(translator: Translator, tmp_path: Path) -> None:
    (tmp_path / "in.en").write_text("\n".join(ENGLISH) + "\n")

    _, errors, _ = run(translator, source=tmp_path / "in.en", output=tmp_path / "new" / "out.de")

    assert (tmp_path / "new" / "out.de").read_text().splitlines() == expected(translator, ENGLISH)
    assert errors == 0


@pytest.mark.parametrize(
    ("source", "output", "error", "message"),
    [
        ("in.en", "./in.en", ConfigError, "read and written at once"),
        ("none.en", "out.de", DataError, "No such file or directory.*a sentence with --text"),
        ("utf16.en", "out.de", DataError, "UTF-16"),
        (None, "in.en/out.de", CheckpointError, "could not be written"),
    ],
)
def test_files_that_cannot_be_used_are_refused_and_left_alone(
    translator: Translator,
    tmp_path: Path,
    source: str | None,
    output: str,
    error: type[Exception],
    message: str,
) -> None:
    (tmp_path / "in.en").write_text(ENGLISH[0])
    (tmp_path / "utf16.en").write_text(ENGLISH[0], encoding="utf-16")

    with pytest.raises(error, match=message):
        run(translator, b"A dog\n", source=source and tmp_path / source, output=Path(f"{tmp_path}/{output}"))

    assert (tmp_path / "in.en").read_text() == ENGLISH[0]
    assert not (tmp_path / "out.de").exists()


def test_what_is_typed_is_answered_line_by_line(translator: Translator) -> None:
    events: list[str] = []

    class Terminal(io.BytesIO):
        def isatty(self) -> bool:
            return True

        def readline(self, size: int | None = -1, /) -> bytes:
            line = super().readline(size)
            events.append("read" if line else "end")
            return line

    class Screen(io.BytesIO):
        def flush(self) -> None:
            events.append("shown")

    translate_file(
        translator,
        None,
        standard_input=Terminal("\n".join(ENGLISH[:2]).encode()),
        standard_output=Screen(),
        tell=Told(),
        search=GREEDY,
    )

    assert events[:5] == ["read", "shown", "read", "shown", "end"]


def test_doubts_are_told_with_the_number_of_the_line(translator: Translator) -> None:
    strange = "\u0421\u043e\u0431\u0430\u043a\u0430"

    _, errors, told = run(translator, f"{ENGLISH[0]}\n{strange}\n".encode())

    assert errors == 0
    assert any("letters" in message for number, kind, message in told if (number, kind) == (2, "warning"))


SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from making.small_translators import small_translator
from vitrail.tasks.translation.files import translate_file
from vitrail.tasks.translation.predictor import Translator

translate_file(
    Translator(small_translator()),
    "-",
    standard_input=sys.stdin.buffer,
    standard_output=sys.stdout.buffer,
    tell=lambda number, kind, message: None,
    layout="json",
)
"""


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_pipe_that_stays_open_is_answered(is_interrupted: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        watch = threading.Timer(120, process.kill)  # where nothing is answered
        watch.start()
        assert process.stdin is not None
        assert process.stdout is not None
        for content, line in [(b"A dog runs.\nTwo ", "A dog runs."), (b"dogs run.\nA ", "Two dogs run.")]:
            process.stdin.write(content)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["source"] == line
        if is_interrupted:
            process.send_signal(signal.SIGINT)
            process.wait()
        _, errors = process.communicate()
        watch.cancel()
    assert b"Fatal" not in errors
    assert process.returncode != -signal.SIGKILL
    assert (process.returncode == 0) is not is_interrupted
