"""The whole way of images with boxes: checked, trained, resumed, scored, found, explained, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from making.box_scenes import NAMES, make_scenes, write_coco, write_voc
from making.small_runs import SMALL_RUNS
from vitrail.cli import main
from vitrail.core.errors import ConfigError, DataError
from vitrail.models.checkpoint import load_model
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.evaluating import evaluate
from vitrail.tasks.training import TrainedRun, train
from vitrail.train.events import Saved

pytest.importorskip("scipy", reason="needs the extra detection")
pytest.importorskip("faster_coco_eval", reason="needs the extra detection")

TINY = {**SMALL_RUNS["detection"].changes, "model.name": "sdetr_nano"}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold images of coloured rectangles, one training image without any."""
    scenes = make_scenes(train=7, validation=2, test=3)
    scenes[1].boxes, scenes[1].labels = [], []
    return write_coco(tmp_path_factory.mktemp("cells"), scenes, ids=(3, 7, 8))


def trained_on(data: Path, output: Path, **request: object) -> TrainedRun:
    changes = {**TINY, **request.pop("changes", {})}  # type: ignore[dict-item]
    done = train(data, changes=changes, output=output, **request)  # type: ignore[arg-type]
    assert isinstance(done, TrainedRun)
    return done


@pytest.fixture(scope="module")
def finished(cells: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return trained_on(cells, tmp_path_factory.mktemp("runs"), name="first", seed=3)


def test_a_run_leaves_a_detector_and_a_report(finished: TrainedRun) -> None:
    assert finished.headline == "ap50"
    assert {"ap", "ap50", "ap75"} <= finished.scores.keys()
    page = finished.report_path.read_text()
    assert "vitrail train" in page
    assert all(name in page for name in NAMES)
    loaded = load_model(finished.folder / "model")
    assert loaded.preprocessing["task"] == "detection"
    assert tuple(loaded.class_names) == NAMES
    assert Detector(loaded).class_ids == (3, 7, 8)


def test_the_score_is_found_again_with_the_threshold_chosen_on_validation_images(
    finished: TrainedRun, cells: Path
) -> None:
    report = json.loads((finished.folder / "report.json").read_text())

    validation = evaluate(finished.folder, cells, split="validation")
    test = evaluate(finished.folder, cells)

    assert test.signature["samples"] == "3"
    assert test.scores["ap"] == pytest.approx(finished.scores["ap"], abs=1e-6)
    chosen = Detector(finished.folder).threshold
    assert report["tables"]["threshold"] == chosen == finished.scores["threshold"]
    assert test.tables["threshold"] == validation.tables["threshold"] == chosen
    assert report["tables"]["threshold_origin"] in {
        "the best F1 of the validation images",
        "nothing to choose it by",
    }


def test_a_score_does_not_ask_for_the_format(finished: TrainedRun, tmp_path: Path) -> None:
    scenes = make_scenes(train=7, validation=2, test=3)
    report = evaluate(finished.folder, write_voc(tmp_path, scenes))

    assert report.scores["ap"] == pytest.approx(finished.scores["ap"], abs=1e-6)


def train_with_a_stop(data: Path, output: Path, **settings: object) -> Path:
    """Train, stop after the first step, and go on."""

    def stop_after_the_first(event: object) -> None:
        if isinstance(event, Saved) and event.step:
            raise KeyboardInterrupt

    changes = {"train.checkpoint_every_s": 1e-9, **settings}
    with pytest.raises(KeyboardInterrupt):
        trained_on(data, output, name="cut", seed=3, changes=changes, on_event=stop_after_the_first)
    train(resume=output / "cut")
    return output / "cut"


def assert_same_weights(*folders: Path) -> None:
    first, second = (load_model(folder / "model").model.state_dict() for folder in folders)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_of_two_threads_that_was_stopped_goes_on_to_the_same_weights(
    cells: Path, tmp_path: Path
) -> None:
    short = {"train.steps": 2, "train.validations": 1}
    torch.set_num_threads(2)
    try:
        whole = trained_on(cells, tmp_path, name="whole", seed=3, changes=short)
        cut = train_with_a_stop(cells, tmp_path, **short)
    finally:
        torch.set_num_threads(1)

    assert json.loads((whole.folder / "environment.json").read_text())["threads"] == 2
    assert_same_weights(whole.folder, cut)


def test_boxes_of_files_are_written_and_shown(
    finished: TrainedRun,
    cells: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test-0.png").write_bytes((cells / "test" / "test-0.png").read_bytes())
    (tmp_path / "broken.png").write_bytes(b"no image")
    output = tmp_path / "found"
    names = ["test-0.png", "broken.png"]

    code = main(["predict", str(finished.folder), *names, "--threshold", "0.0", "-o", str(output)])

    written, told = capsys.readouterr()
    assert code == 1
    assert "broken.png" in told
    assert "test-0.png" in written
    results = json.loads((output / "detections.json").read_text())
    assert {entry["category_id"] for entry in results} <= {3, 7, 8}
    with Image.open(output / "pictures" / "test-0.jpg") as picture:
        assert picture.width >= 97
    assert main(["predict", str(finished.folder), names[0], "-o", str(tmp_path / "found.csv")]) == 2
    assert "found.csv is the name of a file" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "found.csv").exists()
    assert main(["predict", str(finished.folder), names[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["source"] == names[0]


def test_data_is_checked_and_mended_from_the_command_line(
    cells: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = tmp_path / "clean"

    assert main(["check", str(cells), "--fix", str(clean)]) == 0

    out = capsys.readouterr().out
    assert "12 images" in out
    assert str(clean) in out
    assert main(["check", str(clean)]) == 0


def test_a_copy_that_is_no_better_is_told_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenes = make_scenes(train=3, validation=2, test=2)
    for scene in scenes[:3]:
        scene.boxes, scene.labels = [], []
    data, clean = write_coco(tmp_path / "set", scenes), tmp_path / "clean"

    code = main(["check", str(data), "--fix", str(clean), "--json"])

    tree = json.loads(capsys.readouterr().out)
    assert code == 2
    assert not tree["copy"]["usable"]
    assert "no-training-boxes" in {finding["check"] for finding in tree["copy"]["findings"]}
    assert tree["fixed"]["images"] == {"train": 3, "validation": 2, "test": 2}


def test_wrong_requests_are_refused(finished: TrainedRun, cells: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vocabulary_size"):
        trained_on(cells, tmp_path, changes={"data.vocabulary_size": 8})
    with pytest.raises(DataError, match="classes"):
        trained_on(cells, tmp_path, changes={"model.num_classes": 2})
