"""Detection data of every format opens to the same boxes; missing splits are drawn; the rest is explained."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from making.box_scenes import (
    WRITERS,
    assert_holds,
    assert_split_holds,
    coco_content,
    of_split,
    varied_scenes,
    varied_splits,
    write_coco,
    write_flat_voc,
    write_images,
    write_json,
    write_roboflow,
    write_yolo,
)
from vitrail.core.errors import DataError
from vitrail.data.images import read_image
from vitrail.data.splits import stratified_split
from vitrail.tasks.detection import formats
from vitrail.tasks.detection.assembly import Classes, Reading, assemble
from vitrail.tasks.detection.faults import BoxFaults
from vitrail.tasks.detection.findings import TEXTS
from vitrail.tasks.detection.opening import open_boxes, rarest_classes, recognises
from vitrail.tasks.detection.settings import BoxDataSettings

SETTINGS = BoxDataSettings(source="x", image_size=(64, 64), test_fraction=0.25, validation_fraction=0.2)
LAYOUTS = {**WRITERS, "roboflow": write_roboflow}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_format_opens_to_equal_boxes_that_lie_on_what_is_painted(tmp_path: Path, layout: str) -> None:
    scenes = varied_splits()
    dataset = open_boxes(LAYOUTS[layout](tmp_path, scenes), settings=SETTINGS)
    assert_holds(dataset, scenes, atol=1e-3)
    assert (dataset.validation_origin, dataset.test_origin) == ("from the source", "from the source")
    for split in dataset.splits.values():
        for image, boxes, labels in zip(split.images, split.boxes, split.labels, strict=True):
            pixels = np.asarray(read_image(image))
            for box, label in zip(boxes.round().astype(int), labels, strict=True):
                left, top, right, bottom = box
                assert (pixels[top:bottom, left:right, label] == 220).all()


def test_missing_splits_are_drawn_and_the_same_each_time(tmp_path: Path) -> None:
    write_flat_voc(tmp_path, varied_scenes(20, seed=0))
    one, same = (open_boxes(tmp_path, settings=SETTINGS) for _ in range(2))
    other = open_boxes(tmp_path, settings=SETTINGS.with_changes({"split_seed": 1}))
    assert [len(split) for split in one.splits.values()] == [11, 4, 5]
    assert one.fingerprint == same.fingerprint
    assert one.test.names != other.test.names
    together = sorted(name for split in one.splits.values() for name in split.names)
    assert len(set(together)) == 20
    assert one.test_origin == "0.25 of the source, by rarest class, seed 0"
    assert one.validation_origin == "4 of the training images, by rarest class, seed 0"


def test_a_validation_split_serves_as_test_where_there_is_none(tmp_path: Path) -> None:
    scenes = [scene for scene in varied_splits() if scene.split != "test"]
    write_coco(tmp_path, scenes)
    dataset = open_boxes(tmp_path, settings=SETTINGS)
    assert_split_holds(dataset.test, of_split(scenes, "validation"))
    assert dataset.test_origin == "the source's validation split"
    assert len(dataset.train) + len(dataset.validation) == 8
    assert [finding.check for finding in dataset.findings] == ["validation-as-test"]


def test_a_test_split_alone_has_an_empty_training_split(tmp_path: Path) -> None:
    write_coco(tmp_path, of_split(varied_splits(), "test"))
    dataset = open_boxes(tmp_path / "annotations" / "instances_test.json")
    assert [len(split) for split in dataset.splits.values()] == [0, 0, 4]


def test_drawn_images_hold_every_class_that_can_be_shared() -> None:
    labels = [np.array(part, dtype=np.int64) for part in ([0, 0, 1], [0, 1], [0], [0], [0, 2], [2], [], [])]
    kept, held = stratified_split(rarest_classes(labels, 3), 0.4, seed=3)
    assert sorted([*kept, *held]) == list(range(8))
    for part in (kept, held):
        assert {label for index in part for label in labels[index].tolist()} == {0, 1, 2}
        assert any(len(labels[index]) == 0 for index in part)


def test_images_listed_twice_get_names_of_their_own(tmp_path: Path) -> None:
    write_yolo(tmp_path, varied_scenes(4, seed=0))
    file = tmp_path / "data.yaml"
    file.write_text(file.read_text() + "test: images/train\n")
    dataset = open_boxes(tmp_path, settings=SETTINGS)
    assert sorted(dataset.test.names) == [f"images/train/scene{index}.png (2)" for index in range(4)]


def folder_of_images(root: Path) -> Path:
    write_images(root, varied_scenes(3, seed=0))
    (root / "labels.csv").write_text("a,b\n")
    return root


def single_image(root: Path) -> Path:
    write_images(root, varied_scenes(1, seed=0))
    return root / "scene0.png"


def empty_folder(root: Path) -> Path:
    root.mkdir()
    return root


def folder_of_texts(root: Path) -> Path:
    root.mkdir()
    (root / "a.txt").write_text("hello")
    return root


def no_boxes(root: Path) -> Path:
    scenes = [scene for scene in varied_scenes(9, seed=0) if not scene.boxes]
    return write_coco(root, scenes)


def no_known_class(root: Path) -> Path:
    scenes = varied_scenes(4, seed=0)
    write_images(root, scenes)
    content = coco_content(scenes)
    content["categories"] = [{"id": 90, "name": "other"}]
    write_json(root / "all.json", content)
    return root


def no_numbers(root: Path) -> Path:
    scenes = varied_scenes(4, seed=0)
    write_images(root, scenes)
    content = coco_content(scenes)
    for entry in content["annotations"]:
        entry["bbox"] = "1 2 3 4"
    write_json(root / "all.json", content)
    return root


def other_encoding(root: Path) -> Path:
    write_yolo(root, varied_scenes(4, seed=0))
    for path in (root / "labels").rglob("*.txt"):
        path.write_bytes(path.read_text().encode("utf-16-be") + b"\xff")
    return root


def other_names(root: Path) -> Path:
    write_yolo(root, varied_scenes(4, seed=0))
    for path in (root / "labels").rglob("*.txt"):
        path.rename(path.with_name(f"img_{path.name}"))
    return root


def other_json(root: Path) -> Path:
    return write_json(root / "labels.json", {"shapes": []})


def single_xml(root: Path) -> Path:
    return write_flat_voc(root, varied_scenes(1, seed=0)) / "scene0.xml"


def run_configuration(root: Path) -> Path:
    root.mkdir()
    (root / "run.yaml").write_text("model: detr\n")
    return root / "run.yaml"


@pytest.mark.parametrize(
    ("name", "content", "tool"),
    [
        ("images/0.json", '{"version": "5", "shapes": [{"label": "cat"}], "imagePath": "0.jpg"}', "LabelMe"),
        ("a.json", '[{"image": "0.jpg", "annotations": [{"coordinates": {"x": 4}}]}]', "CreateML"),
        ("a.json", '{"0": {"regions": [{"shape_attributes": {"name": "rect"}}]}}', "VIA"),
        ("a.json", '[{"label": [{"x": 3, "rectanglelabels": ["cat"]}]}]', "Label Studio"),
        ("annotations.xml", '<?xml version="1.0"?>\n<annotations><version>1', "CVAT"),
        ("labels.csv", "filename,width,height,class,xmin,ymin,xmax,ymax\n", "a table"),
        ("annotations.csv", "images/0.jpg,10,20,30,40,cat\n", "a table"),
    ],
)
def test_boxes_in_formats_of_other_tools_are_named(
    tmp_path: Path, name: str, content: str, tool: str
) -> None:
    write_images(tmp_path / "images", varied_scenes(2, seed=0))
    (tmp_path / name).write_text(content)

    assert recognises(str(tmp_path))
    with pytest.raises(DataError) as caught:
        open_boxes(tmp_path)

    assert caught.value.given.startswith(f"{tmp_path / name} holds boxes as {tool} has them")


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (folder_of_images, "is not detection data of a known format; it holds 3 images, 1 .csv file"),
        (single_image, "is not detection data"),
        (empty_folder, "it holds no file"),
        (folder_of_texts, "is not detection data of a known format; it holds 1 .txt file"),
        (no_boxes, "has 3 images and no box"),
        (no_known_class, "no box of a class with a name: 6 boxes with class ids"),
        (
            no_numbers,
            "no box that can be used: 6 boxes without a class and four finite numbers, left out, such as "
            "all.json: annotation 0, scene1.png",
        ),
        (
            other_encoding,
            "4 annotation files not readable, left out with the images, such as labels/train/scene0",
        ),
        (
            other_names,
            "4 annotated images not in the folder, left out with the boxes, such as labels/train/img_scene",
        ),
        (other_json, "has no list 'images' and 'categories', its keys are 'shapes'"),
        (single_xml, "is not detection data"),
        (run_configuration, "run.yaml names no folder of images, and none lies beside it"),
        (lambda root: root / "missing", "there is no path"),
        (lambda root: root / ("long" * 200), "there is no path"),
        (lambda root: "~no-such-user-here/x", "no-such-user-here/x'"),
        (lambda root: "", "there is no path ''"),
        (lambda root: "\0", "'\\x00'"),
    ],
)
def test_what_cannot_be_used_is_explained(tmp_path: Path, make: Callable[[Path], Path], given: str) -> None:
    with pytest.raises(DataError) as caught:
        open_boxes(make(tmp_path / "data"))
    assert given in caught.value.given
    assert caught.value.expected
    assert caught.value.remedy


def test_texts_are_those_of_the_checks_that_the_code_names() -> None:
    sources = [path.read_text() for path in Path(formats.__file__).parents[1].rglob("*.py")]
    quoted = {name for source in sources for name in re.findall(r'"([a-z]+(?:-[a-z]+)*)"', source)}
    called = r'(?:note|finding|listed)\(\s*"([a-z-]+)"'
    assert {name for source in sources for name in re.findall(called, source)} <= set(TEXTS)
    of_faults = {name.replace("_", "-") for name in BoxFaults._fields}
    assert set(TEXTS) <= quoted | of_faults
    for check in TEXTS:
        values = defaultdict(lambda: 1.0)
        for part in ("message", "remedy"):
            assert TEXTS[check][part].format_map(values)


def test_notes_become_findings_with_their_number(tmp_path: Path) -> None:
    reading = Reading(annotated={"train": []})
    for item in ("a", "b"):
        reading.note("malformed-boxes", item)
    (noted,) = assemble(reading, Classes((), ()), box_format="xyxy").findings
    assert (noted.check, noted.items, noted.count) == ("malformed-boxes", ("a", "b"), 2)
    assert noted.message.startswith("2 boxes without")


def test_a_second_format_at_the_same_place_is_told(tmp_path: Path) -> None:
    scenes = varied_splits()
    write_roboflow(tmp_path, scenes)
    for scene in scenes:
        write_flat_voc(tmp_path / scene.split.replace("validation", "valid"), [scene])
    dataset = open_boxes(tmp_path)
    assert dataset.format == "COCO"
    (finding,) = dataset.findings
    assert finding.check == "several-formats"
    assert "as COCO and Pascal VOC; those as COCO are read" in finding.message
