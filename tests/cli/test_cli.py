"""The command line: help, errors a user can mend, exit codes, and the whole way from images to answers."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from PIL import Image

import vitrail.cli
from making.image_folders import write_image_folder
from making.plain_pages import plain_pages
from vitrail.cli import app, main
from vitrail.models import MODELS
from vitrail.models.checkpoint import LoadedModel
from vitrail.train.interrupt import TrainingInterrupted

NAMES = """
bench benchmarks calibrate check classify compare convert draw env evaluate explain export faithfulness lab
label models predict probe retrieve robustness serve train translate
"""
COMMANDS = NAMES.split()
HEAVY = {"torch", "numpy", "PIL", "pydantic", "matplotlib", "datasets", "sklearn", "vitrail.tasks.training"}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run one command in an empty folder, on a screen of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run_command(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run_command


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of images and the directory of a short run on them."""
    root = tmp_path_factory.mktemp("trained")
    photos = write_image_folder(root / "photos", per_class=5)
    settings = ("train.steps=3", "train.batch_size=4", "train.precision=float32", "model.depth=1")
    assignments = [part for setting in settings for part in ("--set", setting)]
    where = ["--name", "tiny", "--output", str(root / "runs")]
    with plain_pages():
        assert main(["train", str(photos), "--model", "vit_nano", *where, *assignments]) == 0
    return photos, root / "runs" / "tiny"


def test_the_commands_are_those_of_the_documents() -> None:
    named = [name for name in app if not name.startswith("-")]

    assert sorted(named) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_explains_each_parameter_and_has_one_example(run: Run, command: str) -> None:
    code, shown, _ = run(command, "--help")

    assert code == 0
    assert re.findall(r"^Example: (.*)$", shown, re.MULTILINE)[0].startswith(f"vitrail {command}")
    assert shown.count("Example:") == 1
    assert max(map(len, shown.splitlines())) <= 80
    function = app[command].default_command
    assert all(f"        {name}: " in function.__doc__ for name in inspect.signature(function).parameters)


def test_importing_help_and_version_load_nothing_heavy() -> None:
    script = (
        "import sys; import vitrail; print([name for name in sys.modules if name.startswith('vitrail.')]);"
        "from vitrail.cli import main;"
        "main(['--help']); main(['train', '--help']); main(['--version']);"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("[]", "[]")
    assert f"vitrail {vitrail.__version__}" in done.stdout


def test_public_names_stay_functions_beside_modules_of_the_same_names() -> None:
    import vitrail.train.evaluate
    import vitrail.train.loop

    assert set(vitrail.__all__) == set(dir(vitrail))
    assert all(callable(getattr(vitrail, name)) for name in vitrail.__all__ if name != "__version__")
    with pytest.raises(AttributeError, match="has no attribute 'traim'"):
        vitrail.traim  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["traim", "photos"], 'Did you mean "train"'),
        (["train", "photos", "--bugdet", "3m"], "Did you mean --budget"),
        (["train", "photos", "--lr", "0.1"], "no option --lr. Write --set optim.learning_rate=VALUE."),
        (["train", "photos", "--epochs=3"], "no option --epochs. Give --budget TIME"),
        (["train", "photos", "--device", "cuda"], "a GPU is used where there is one"),
        (["train", "photos", "--seed", "seven"], 'unable to convert "seven" into int'),
        (["train", "photos", "--budget", "0"], "not longer than zero"),
        (["train", "photos", "--budget", "ten"], "such as 90s, 10m"),
        (["train", "photos", "--set", "rate"], "optim.learning_rate=0.001"),
        (["train", "photos", "more"], "unexpected more. See vitrail --help"),
        (["train", "x", "--set", "a=1", "b=2"], "unexpected b=2. Write --set before every setting"),
        (["train", "digits", "--recipe", "nope"], "no recipe named 'nope'"),
        (["train", "digits", "--model", "vit_nanoo", "--dry-run"], "Did you mean 'vit_nano'"),
        (["train", "digits", "--set", "optim.learning_rat=1", "--dry-run"], "Did you mean 'learning_rate'"),
        (["train"], "no data was named"),
        (["train", "digits", "--resume", "nowhere"], "nowhere"),
        (["check", "nowhere"], "nowhere"),
        (["evaluate", "nowhere", "digits"], "nowhere"),
        (["predict", "nowhere", "a.png"], "nowhere"),
        (["predict", "nowhere"], "FILE requires an argument"),
        (["predict", "nowhere", "a.png", "--top", "0"], "Must be >= 1"),
        (["models", "vit_s15"], "Did you mean 'vit_s16'"),
        (["models", "vit_s16", "--size", "15"], "at least 16x16"),
        (["models", "vit_s16", "--size", "big"], "384x512"),
        (["models", "--size", "384"], "Name the model"),
        (["models", "vit_s16", "--settings", "--json"], "Name the model"),
        (["models", "--set", "model.patch_size=1"], "Name the model"),
        (["models", "vit_s16", "--set", "patch_size=1"], "--set model.patch_size"),
        (["models", "vit_s16", "--set", "model.patchsize=1"], "Did you mean 'patch_size'"),
        (["models", "vit_s16", "--set", "model.patch_size=0"], "greater than or equal to 1"),
        (["models", "vit_s16", "--set", "model.patch_size"], "an equals sign"),
    ],
)
def test_a_user_error_is_one_wrapped_message_and_code_2(run: Run, arguments: list[str], message: str) -> None:
    code, shown, error = run(*arguments)

    assert code == 2
    assert error.startswith("vitrail: error: ")
    assert message in " ".join(error.split())
    assert max(map(len, error.splitlines())) <= 80
    assert "Traceback" not in shown + error


def test_an_interrupted_command_ends_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("vitrail.cli.models"), "show_models", interrupt)

    assert run("models") == (130, "", "vitrail: interrupted\n")


def test_an_interrupted_training_ends_with_130_and_the_command_to_go_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise TrainingInterrupted(Path("runs/first"), 3, 7)

    monkeypatch.setattr("vitrail.tasks.training.train", interrupt)

    code, _, error = run("train", "digits")

    assert code == 130
    assert error.startswith("vitrail: stopped after step 3 of 7")
    assert error.endswith("vitrail train --resume runs/first\n")


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_reader_who_has_left_is_no_error(option: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run(
        [sys.executable, "-m", "vitrail", option], stdout=writing, stderr=subprocess.PIPE, check=False
    )

    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


SHOWN_OF_MODELS = {
    "": r"""
        ^  vit_b16 +86,567,656 parameters +224x224$
        ^  transformer_base +63,082,496 parameters +text$""",
    "vit_nano --settings": r"""
        ^model\.depth +\d+ """,
    "swin_t": r"""
        ^stage 1 +224,694 .* 56x56 = 3,136 +96 *$
        ^stages\.0\.blocks\.0-1 +3 +64 +49 x 49 +153,664 +9,834,496$
        ^timm +swin_tiny_patch4_window7_224 *$""",
    "transformer_tiny --size 64x48": r"""
        ^transformer_tiny: 2,605,056 parameters, made for 10,000 and 10,000 subwords
        ^A sentence of 64 subwords with its translation of 48
        ^encoder, 4 blocks +529,920
        ^decoder\.0-3\.cross_attention +4 +1 +48 x 64 +3,072 +3,072$""",
}


@pytest.mark.parametrize("arguments", SHOWN_OF_MODELS)
def test_models_are_described_in_80_columns(
    run: Run, arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = {MODELS[name].family: name for name in sorted(MODELS, key=len)}  # all take seconds to count
    names = {*longest.values(), "vit_b16", "vit_nano", "swin_t", "transformer_base", "transformer_tiny"}
    monkeypatch.setattr("vitrail.models.describe.MODELS", {name: MODELS[name] for name in names})

    code, shown, _ = run("models", *arguments.split())

    patterns = [line.removeprefix(8 * " ") for line in SHOWN_OF_MODELS[arguments].splitlines()[1:]]
    assert code == 0
    assert [pattern for pattern in patterns if not re.search(pattern, shown, re.MULTILINE)] == []
    assert max(map(len, shown.splitlines())) <= 80


def test_the_card_of_a_model_at_another_size_as_json(run: Run) -> None:
    code, shown, _ = run("models", "vit_ti16", "--size", "32x64", "--json")

    card = json.loads(shown)
    assert code == 0
    assert card["image_size"] == [32, 64]
    assert card["attention"][0]["queries"] == 1 + 2 * 4


def test_the_card_of_a_changed_model_counts_pixels_as_tokens(run: Run) -> None:
    code, shown, _ = run("models", "vit_s16", "--set", "model.patch_size=1", "--size", "28")

    assert code == 0
    assert shown.startswith("vit_s16 --set model.patch_size=1: ")
    assert "785 x 785" in shown
    assert "616,225" in shown  # 28^4 with the class token
    assert "none are published" in shown

    code, shown, _ = run("models", "vit_s16", "--set", "model.patch_size=1", "--settings")
    assert code == 0
    assert re.search(r"model\.patch_size +1 ", shown)


def test_check_tells_what_it_found_and_fails_on_the_unusable(run: Run, image_folder: Path) -> None:
    code, shown, _ = run("check", image_folder)
    assert code == 0
    assert shown.splitlines()[-1].startswith("OK")

    code, shown, _ = run("check", image_folder, "--json")
    assert code == 0
    assert json.loads(shown)["counts"]["classes"] == 3


def test_a_dry_run_prints_every_choice_and_writes_nothing(run: Run, image_folder: Path) -> None:
    before = sorted(Path.cwd().rglob("*"))

    code, shown, _ = run("train", image_folder, "--dry-run", "--set", "train.steps=3")

    assert code == 0
    assert re.search(r"^setting +value +reason", shown, re.MULTILINE)
    assert re.search(r"^train\.steps +3 +you set it", shown, re.MULTILINE)
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    assert sorted(Path.cwd().rglob("*")) == before


def test_training_ends_with_the_accuracy_and_the_report(run: Run, image_folder: Path) -> None:
    code, shown, _ = run(
        "train", image_folder, "--model", "vit_nano", "--name", "short", "--set", "train.steps=2"
    )

    assert code == 0
    assert re.fullmatch(r"accuracy [01]\.\d{3}  report runs/short/report\.html", shown.splitlines()[-1])
    assert (Path("runs/short") / "report.html").stat().st_size > 1000


def test_a_trained_model_is_evaluated(run: Run, trained: tuple[Path, Path]) -> None:
    photos, folder = trained

    code, shown, _ = run("evaluate", folder, photos, "--split", "train", "--json")
    report = json.loads(shown)
    assert code == 0
    assert report["signature"]["samples"] == "9"

    code, shown, _ = run("evaluate", folder, photos, "--split", "train")
    assert code == 0
    assert f"accuracy           {report['scores']['accuracy']:.4f}" in re.sub(" +", " " * 11, shown)

    code, _, error = run("evaluate", folder, photos, "--split", "dev")
    assert code == 2
    assert "no split 'dev'" in error

    code, _, error = run("evaluate", folder, photos, "--figures", "figures.png")
    assert code == 2
    assert "a model for classification. Expected a detector" in " ".join(error.split())

    code, _, error = run("evaluate", folder, "shapes")
    assert code == 2
    assert "shapes holds images with boxes. Expected images with classes" in " ".join(error.split())


def test_one_bad_file_does_not_stop_the_predictions(run: Run, trained: tuple[Path, Path]) -> None:
    photos, folder = trained
    Path("broken.jpg").write_text("no image")

    code, shown, error = run("predict", folder, photos / "red", "broken.jpg", "--json", "--top", "2")

    answers = json.loads(shown)
    assert code == 1
    assert [len(answer.get("scores", ())) for answer in answers] == [2] * 5 + [0]
    assert "broken.jpg" in answers[-1]["source"]

    code, shown, error = run("predict", folder, "broken.jpg", photos / "red", "--top", "2", "-o", "found.csv")
    assert code == 1
    assert shown == "found.csv\n"
    assert error.startswith("vitrail: skipped: ")
    lines = Path("found.csv").read_text().splitlines()
    assert lines[0] == "image,rank,class,probability,error"
    assert len(lines) == 1 + 1 + 5 * 2
    assert run("predict", folder, photos / "red", "-o", "found.xyz")[0] == 2

    code, shown, error = run("predict", folder, photos / "red", "broken.jpg", "--top", "1")
    assert code == 1
    assert len(re.findall(r"\d%", shown)) == 5
    assert error.startswith("vitrail: skipped: ")


def test_predictions_are_made_by_the_engine_that_is_asked_for(run: Run, trained: tuple[Path, Path]) -> None:
    photos, folder = trained

    def classes(source: Path | str, *options: str) -> list[str]:
        code, shown, _ = run("predict", source, photos / "red", "--json", *options)
        assert code == 0
        return [answer["class"] for answer in json.loads(shown)]

    expected = classes(folder)
    assert classes(folder, "--engine", "openvino") == expected
    assert classes(folder, "--engine", "auto", "--precision", "float32") == expected
    assert run("export", folder, "--format", "torch", "-o", "exported")[0] == 0
    assert run("predict", "exported", photos / "red")[0] == 2  # it can run code of whoever wrote it
    assert classes("exported", "--trust") == expected

    code, _, error = run("predict", folder, photos / "red", "--engine", "onnx")
    assert code == 2
    assert "Did you mean 'onnxruntime'" in error


@pytest.mark.parametrize(
    ("kind", "arguments", "named"),
    [
        ("classification", ("a.png", "--target", "a dog"), "--target"),
        ("detection", ("a.png", "--class", "dog"), "--class"),
        ("detection", ("a.png", "--method", "attention", "--target", "a"), "--target and --method"),
        ("captioning", ("a.png", "--class", "dog"), "--class"),
        ("captioning", ("a.png", "--subwords"), "--subwords"),
        ("translation", ("--text", "A dog.", "--method", "rollout"), "--method"),
        ("translation", ("--text", "A dog.", "--threshold", "0.5"), "--threshold"),
    ],
)
def test_explain_refuses_what_a_kind_of_model_has_no_use_for(
    run: Run, monkeypatch: pytest.MonkeyPatch, kind: str, arguments: tuple[str, ...], named: str
) -> None:
    loaded = LoadedModel(torch.nn.Identity(), {}, {"task": kind}, [], {})
    monkeypatch.setattr("vitrail.engines.loading.load_any", lambda run: loaded)

    code, _, error = run("explain", "somewhere", *arguments)

    assert code == 2
    assert re.search(rf"{named} requires?", " ".join(error.split()))


@pytest.mark.parametrize("command", ["label", "translate"])
def test_a_file_and_a_sentence_exclude_each_other(run: Run, command: str) -> None:
    code, _, error = run(command, "somewhere", "letter.en", "--text", "A dog.")

    assert code == 2
    assert "letter.en and --text were given. Expected one of them" in error


def test_an_explanation_is_a_picture_or_a_page(run: Run, trained: tuple[Path, Path]) -> None:
    photos, folder = trained
    image = next((photos / "red").iterdir())

    assert run("explain", folder, image, "-o", "red.png")[:2] == (0, "red.png\n")
    assert run("explain", folder, image)[:2] == (0, "explain.html\n")

    with Image.open("red.png") as picture:
        assert picture.width >= 100
    assert "<html" in Path("explain.html").read_text()
