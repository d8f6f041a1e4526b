"""The page of the lectures: all of its rows, every command and every line of Python run on small data."""

from __future__ import annotations

import ast
import json
import re
import shlex
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jaxtyping
import pytest

from lab.test_claims import TINY
from making.benchmark_folders import write_cifar10, write_imagenet, write_real, write_vtab_task
from making.bert_folder import write_bert_folder
from making.box_scenes import make_scenes, write_coco
from making.caption_folders import write_csv
from making.image_folders import noise, write_image_folder
from making.marian_folder import write_marian_folder
from making.plain_pages import plain_pages
from making.saved_vit import save_vit
from making.small_runs import SMALL_RUNS, write_corpus, write_reviews
from vitrail.cli import main
from vitrail.lab import CLAIMS, harness
from vitrail.lab.figures import FIGURES, drawing
from vitrail.models import MODELS
from vitrail.models.checkpoint import LoadedModel, load_model
from vitrail.models.weights import published
from vitrail.models.weights.bert import load_bert
from vitrail.models.weights.files import hub_settings
from vitrail.studies import comparing, stepping
from vitrail.tasks.detection import shapes

PAGE = Path(__file__).resolve().parents[1] / "docs" / "lectures.md"
TEXT = PAGE.read_text(encoding="utf-8")
NUM_ROWS = 168
VIDEO = 63  # a paragraph says what it would need
WITHOUT_RUNS = ("benchmarks", "draw", "lab", "models")  # commands that need none of the page's runs
SHORT = ("train.steps=1", "train.validations=1", "train.precision=float32")
SMALL = {  # settings of a training beside these, by the family of its model
    "captioner": SMALL_RUNS["captioning"].changes,
    "clip": SMALL_RUNS["contrastive"].changes,
    "detr": {
        "model.backbone_width": 8,
        "model.width": 16,
        "model.hidden_dim": 24,
        "model.num_heads": 2,
        "data.image_size": [48, 64],
        "train.batch_size": 4,
    },
    "recurrent": {"model.embedding_dim": 6, "model.hidden_dim": 8, "data.vocabulary_size": 60},
    "swin": {"model.width": 6, "model.depths": [1, 1], "model.num_heads": [1, 2]},
    "text_encoder": {"model.width": 12, "data.vocabulary_size": 40},
    "transformer": {"model.width": 16, "model.hidden_dim": 24, "data.vocabulary_size": 60},
    "vit": {"model.width": 12, "model.depth": 1, "model.num_heads": 3, "train.batch_size": 4},
}
DRAWN = {"positional_attention": ("side=4", "num_steps=3")}
SAID = {  # what the output of some commands must contain
    "vitrail models swin_t": "9,834,496",
    "vitrail models transformer_base": "63,082,496",
    "vitrail models vit_l16 --size 256": "16x16 = 256",
    "vitrail benchmarks flowers102": "top-1 accuracy",
}
OFFLINE = {  # what needs the network, and the message without it
    "timm:vit_base_patch16_224.augreg_in21k": "the Hugging Face hub cannot be reached",
    "newstest2014": "is not on this machine and cannot be downloaded",
}


def rows_of_page() -> list[list[str]]:
    """Return the columns of each numbered row: number, topic, command, file."""
    return [
        [column.strip() for column in line.split("|")[1:-1]] for line in TEXT.splitlines() if line[:3] > "| 0"
    ]


ROWS = [row for row in rows_of_page() if row[0].isdigit()]
BLOCKS = dict(re.findall(r"^```(sh|python)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
MAKING = [line for line in BLOCKS["sh"].splitlines() if line]
SPANS = re.findall(r"`(vitrail \w+ [^`]+)`", re.sub(r"^```.*?^```", "", TEXT, flags=re.MULTILINE | re.DOTALL))
COMMANDS = [line for line in dict.fromkeys(SPANS) if line not in MAKING]
ALONE = [line for line in COMMANDS if line.split()[1] in WITHOUT_RUNS and "runs/" not in line]


def test_every_row_is_there_with_its_command_and_its_file() -> None:
    assert [int(row[0]) for row in ROWS] == [*range(1, NUM_ROWS + 1)]
    for number, topic, command, file in ROWS:
        assert len(topic) > 3
        if int(number) != VIDEO:
            assert re.fullmatch(r"`[^`]+`", command), f"row {number} has no command"
            (link,) = re.findall(r"\]\((\.\./src/[^)]+)\)", file)
            assert (PAGE.parent / link).exists(), f"row {number}: {link}"


def test_pictures_are_small_and_all_are_shown() -> None:
    shown = set(re.findall(r"\]\((images/lectures/[^)]+)\)", TEXT))
    files = sorted((PAGE.parent / "images" / "lectures").iterdir())

    assert {path.relative_to(PAGE.parent).as_posix() for path in files} == shown
    assert max(path.stat().st_size for path in files) <= 150_000
    assert sum(path.stat().st_size for path in files) <= 3_000_000


def test_every_claim_and_every_figure_is_on_the_page() -> None:
    words = set(re.findall(r"\w+", " ".join(SPANS)))

    assert not [name for name in CLAIMS if name not in words]
    assert not [name for name in FIGURES if name not in words]


def test_lines_of_python_run() -> None:
    names: dict[str, Any] = {}
    exec(BLOCKS["python"], names)
    lines = [row[2].strip("`") for row in ROWS if row[2] != "-" and not row[2].startswith("`vitrail ")]

    for line in lines:
        value = eval(compile(ast.parse(line, mode="eval"), line, "eval"), names)
        assert value is not False, line
        assert value is not None or line.startswith("print("), line
    assert len(lines) > 10


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small models in the place of packages; no checks of shapes and no plots, which other tests make."""
    monkeypatch.setattr(published, "load_packaged", load_stand_in)
    for module in (drawing, harness, stepping):
        monkeypatch.setattr(module, "to_picture", lambda figure, *_: b"a picture")
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("line", ALONE)
def test_a_command_runs_alone(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    noise((70, 50)).save("cat.jpg")

    run(line, capsys)


def test_commands_run_on_what_the_page_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All in one place, which is made once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path / "data"))
    write_everything(Path())
    monkeypatch.setattr(shapes, "COUNTS", {"train": 6, "validation": 2, "test": 4})
    monkeypatch.setattr(comparing, "run_to_the_end", train_in_this_process)
    # Drawn by other tests.
    monkeypatch.setattr(comparing, "write_comparison", lambda path, comparison: path.write_text("a page"))
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with plain_pages():
        for line in [*MAKING, *(line for line in COMMANDS if line not in ALONE)]:
            run(line, capsys)


def run(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command of the page, made short, and look at what it leaves."""
    words = shlex.split(line)[1:]
    offline = [message for source, message in OFFLINE.items() if source in words]
    expected = [Path(word) for option, word in pairwise(words) if option == "-o"]
    if words[0] == "draw" and not expected:
        expected = [Path(f"{words[1]}.png")]
    if words[0] == "lab":
        expected = [Path("lab") / f"{name}.png" for name in words[1:]]
    before = {path: path.stat().st_mtime_ns for path in expected if path.exists()}
    capsys.readouterr()

    code = main([*words, *further(words)])

    shown = capsys.readouterr()
    if offline:
        assert code == 2, line
        assert offline[0] in " ".join(shown.err.split())
        return
    assert code == 0, f"{line}\n{shown.err}"
    assert shown.out or expected, line
    assert SAID.get(line, "") in " ".join(shown.out.split())
    for path in expected:
        assert path.exists(), f"{line} leaves no {path}"
        assert path.stat().st_mtime_ns != before.get(path), f"{line} leaves {path} as it was"


def further(words: list[str]) -> Iterator[str]:
    """Yield the settings that make a command short, but for those that it has."""
    command, subject = words[0], words[1]
    given = {word.partition("=")[0] for word in words}
    settings: list[str] = []
    if command == "lab":
        settings = [f"{subject}.{setting}" for setting in TINY[subject].split()]
        if "num_seeds" in type(CLAIMS[subject]).model_fields:
            settings.append(f"{subject}.num_seeds=1")
    elif command == "draw":
        settings = [*DRAWN.get(subject, ())]
        if subject == "typographic" and "--model" not in words:
            yield from ("--model", "runs/clip")
    elif command in ("train", "compare"):
        settings = [*SHORT]
        if "--weights" not in words:
            settings += [f"{name}={json.dumps(value)}" for name, value in small_settings(words).items()]
    elif "--steps" in words and "--tokens" not in words:
        yield from ("--tokens", "0,1")  # numbers in a picture take time
    for setting in settings:
        if setting.partition("=")[0] not in given:
            yield from ("--set", setting)


def small_settings(words: list[str]) -> dict[str, Any]:
    """Return settings of a training by its model, which the data choose where none is named."""
    if words[0] == "compare":
        return {} if "--models" in words else dict(SMALL["vit"])
    options = dict(pairwise(words))
    name = options.get("--model") or {"shapes": "detr_tiny"}.get(words[1], "vit_nano")
    return {key: value for key, value in SMALL[MODELS[name].family].items() if not key.startswith("train.st")}


def write_everything(folder: Path) -> None:
    """Write the data that the commands name."""
    write_image_folder(folder / "photos", per_class=6)
    for name in ("cat", "coffee", "astronaut"):
        noise((70, 50)).save(folder / f"{name}.jpg")
    noise((96, 96)).save(folder / "scene.png")
    write_corpus(folder / "corpus", test=5)
    (folder / "letter.en").write_text("a big dog runs\n\nthe man sees\n")
    tests = (folder / "corpus" / "test.de").read_text().splitlines()
    (folder / "gold.txt").write_text(
        "".join(f"{' '.join(f'{i}-{i}' for i, _ in enumerate(row.split()))}\n" for row in tests)
    )
    (folder / "tags.txt").write_text("".join(f"{' '.join('NOUN' for _ in row.split())}\n" for row in tests))
    write_reviews(folder / "reviews")
    names = "Ann B-PER\nruns O\n\nBo B-PER\nsees O\nAnn B-PER\n\n"
    (folder / "names").mkdir()
    for split, count in (("train", 8), ("val", 2), ("test", 2)):
        (folder / "names" / f"{split}.conll").write_text(names * count)
    write_csv(folder / "captioned", 24)
    write_coco(folder / "cells", make_scenes(train=7, validation=2, test=3))
    write_marian_folder(folder / "Helsinki-NLP" / "opus-mt-en-fr")
    save_vit(folder / "runs" / "imagenet", class_names=[f"thing {i}" for i in range(1000)])
    write_imagenet(folder / "data" / "imagenet", {1: 970, 2: 3, 3: 5})
    write_real(folder / "data" / "imagenet-real" / "real.json", {1: [970, 7], 2: [8], 3: [5]})
    write_cifar10(folder / "data" / "cifar-10-batches-py")
    for task in ("dtd", "eurosat"):
        write_vtab_task(folder / "data" / "vtab-1k" / task)


def load_stand_in(source: str) -> LoadedModel:
    """Return a small model of the kind that a package holds."""
    if "minilm" in source:
        folder = Path("minilm")
        write_bert_folder(folder, "none")
        return load_bert(str(folder), hub_settings(str(folder), "config.json"))
    return load_model(save_vit(Path("focus"), class_names=("no class",)))


def refuse(url: str) -> None:
    raise urllib.error.URLError("Name or service not known")


def train_in_this_process(command: list[str], log: Path, on_progress: Any) -> None:
    assert main(command[3:]) == 0
