from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from making.bright_boxes import bright_detector, picture_with
from vitrail.core.boxes import xywh_to_xyxy
from vitrail.core.errors import ConfigError, DataError
from vitrail.tasks.detection.detections import Detections
from vitrail.tasks.detection.files import detect_files
from vitrail.tasks.detection.opening import open_boxes
from vitrail.tasks.detection.predictor import Detector

RED, GREEN, BLUE = (8, 16, 48, 40), (32, 0, 64, 20), (2, 30, 62, 60)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files in two folders: two boxes, one box, none, and no image."""
    folder = tmp_path_factory.mktemp("files") / "photos"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    picture_with((64, 64), {0: RED, 1: GREEN}).save(folder / "a/one.png")
    picture_with((64, 64), {2: BLUE}).save(folder / "b/one.png")
    picture_with((32, 64), {}).save(folder / "b/two.png")
    (folder / "b/bad.png").write_text("no image")
    return folder


def detector() -> Detector:
    return Detector(bright_detector(class_ids=[7, 3, 90]), batch_size=3)


class Written(NamedTuple):
    folder: Path
    detections: list[Detections]


@pytest.fixture(scope="module")
def written(photos: Path) -> Written:
    folder = photos.parent / "new" / "out"
    return Written(folder, detect_files(detector(), [photos], output=folder))


def test_coco_results_name_images_and_classes_by_their_ids(written: Written) -> None:
    results = json.loads((written.folder / "detections.json").read_text())
    boxes = [(each["image_id"], each["category_id"], each["bbox"]) for each in results]
    # Images are a/one, b/bad, b/one, b/two.
    assert boxes == [(1, 7, [8, 16, 40, 24]), (1, 3, [32, 0, 32, 20]), (3, 90, [2, 30, 60, 30])]
    assert [each["score"] for each in results] == pytest.approx([0.95257, 0.8808, 0.73106], abs=1e-5)
    names = [Path(each.name).name for each in written.detections]
    assert names == ["one.png", "bad.png", "one.png", "two.png"]


def test_annotations_name_images_as_they_are_found_from_their_folder(photos: Path, written: Written) -> None:
    content = json.loads((written.folder / "annotations.json").read_text())
    assert {each["id"]: (written.folder / each["file_name"]).resolve() for each in content["images"]} == {
        1: (photos / "a/one.png").resolve(),
        3: (photos / "b/one.png").resolve(),
        4: (photos / "b/two.png").resolve(),
    }
    assert content["images"][2] == content["images"][2] | {"height": 32, "width": 64}
    assert {each["id"]: each["name"] for each in content["categories"]} == {7: "red", 3: "green", 90: "blue"}


def test_annotations_are_read_back_as_a_data_set(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detect_files(detector(), [photos], output=tmp_path / "out")
    monkeypatch.setenv("VITRAIL_DATA", str(photos))  # which does not lie beside the output

    dataset = open_boxes(str(tmp_path / "out" / "annotations.json"))
    read = {
        tuple(box): dataset.class_names[label]
        for split in dataset.splits.values()
        for boxes, labels in zip(split.boxes, split.labels, strict=True)
        for box, label in zip(boxes.tolist(), labels.tolist(), strict=True)
    }
    assert read == {RED: "red", GREEN: "green", BLUE: "blue"}
    assert sum(len(split) for split in dataset.splits.values()) == 3


def test_pycocotools_reads_annotations_and_results(written: Written) -> None:
    coco = pytest.importorskip("pycocotools.coco")

    data = coco.COCO(str(written.folder / "annotations.json"))
    results = data.loadRes(str(written.folder / "detections.json"))
    (blue,) = results.loadAnns(results.getAnnIds(imgIds=[3]))
    assert xywh_to_xyxy(torch.tensor(blue["bbox"])).tolist() == list(BLUE)


def test_the_table_has_a_row_for_each_box_and_each_image_without_one(written: Written) -> None:
    with (written.folder / "detections.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(Path(row["image"]).name, row["class"], row["left"], row["bottom"]) for row in rows] == [
        ("one.png", "red", "8.00", "40.00"),
        ("one.png", "green", "32.00", "20.00"),
        ("bad.png", "", "", ""),
        ("one.png", "blue", "2.00", "60.00"),
        ("two.png", "", "", ""),
    ]
    assert "not an image" in rows[2]["error"]
    assert rows[4]["error"] == ""


def test_images_are_drawn_under_names_of_their_own(written: Written) -> None:
    names = {path.name for path in (written.folder / "pictures").iterdir()}
    assert names == {"one.jpg", "one-2.jpg", "two.jpg"}
    with Image.open(written.folder / "pictures" / "one-2.jpg") as drawn:
        assert drawn.size == (384, 384)
        blue = np.asarray(drawn).astype(int)
    assert blue[230, 200].argmax() == 2
    assert [each.name[-7:] for each in written.detections if each.error] == ["bad.png"]


def test_what_cannot_be_done_is_refused_before_anything_is_written(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="threshold"):
        detect_files(detector(), [photos], output=tmp_path / "out", threshold=2)
    with pytest.raises(DataError, match="no image was named"):
        detect_files(detector(), [], output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_replaced_where_no_image_can_be_used(photos: Path, tmp_path: Path) -> None:
    detect_files(detector(), [photos], output=tmp_path / "out")
    before = {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}

    found = detect_files(detector(), [photos / "b/bad.png"], output=tmp_path / "out")

    assert [each.error is None for each in found] == [False]
    assert {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()} == before


def test_pictures_of_an_earlier_call_go_and_other_files_stay(photos: Path, tmp_path: Path) -> None:
    detect_files(detector(), [photos], output=tmp_path / "out")
    assert len(list((tmp_path / "out" / "pictures").iterdir())) == 3
    own = tmp_path / "out" / "pictures" / "own.jpg"
    own.write_bytes(b"of the user")

    detect_files(detector(), [photos / "a"], output=tmp_path / "out")

    assert {path.name for path in own.parent.iterdir()} == {"own.jpg", "one.jpg"}
