"""Columns of objects: saved data sets, parquet and metadata.jsonl, in both forms and in every box format."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from making.box_scenes import (
    NAMES,
    Scene,
    as_centre,
    as_corners,
    as_xywh,
    in_shares,
    varied_scenes,
    write_images,
)
from vitrail.core.errors import DataError
from vitrail.data.images import read_image
from vitrail.tasks.detection.dataset import BoxSplit
from vitrail.tasks.detection.formats import BOX_FORMATS
from vitrail.tasks.detection.formats.objects import is_of_boxes, read_by_name

OBJECTS = BOX_FORMATS["Hugging Face objects"]
SCENES = varied_scenes(8, seed=3)


def lone_scene() -> Scene:
    """Return a scene whose box lies in the image in several formats."""
    return Scene("a.png", "train", np.zeros((50, 50, 3), np.uint8), [[2.0, 3.0, 14.0, 17.0]], [0])


def encoded(scene: Scene) -> dict[str, Any]:
    buffer = io.BytesIO()
    Image.fromarray(scene.pixels).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


FORMATS = {
    "xywh": as_xywh,
    "xyxy": as_corners,
    "xywh_shares": in_shares(as_xywh),
    "xyxy_shares": in_shares(as_corners),
    "cxcywh_shares": in_shares(as_centre),
}


def stored(scene: Scene, box_format: str = "xywh") -> list[list[float]]:
    """Return the boxes in a format."""
    return [FORMATS[box_format](box, scene.size) for box in scene.boxes]


def row(scene: Scene, box_format: str = "xywh", **extra: Any) -> dict[str, Any]:
    objects = {"bbox": stored(scene, box_format), "category": scene.labels}
    return {"image": encoded(scene), "objects": objects, **extra}


def save(folder: Path, rows: Sequence[dict[str, Any]], features: Any = None) -> Path:
    """Save rows as a data set of one split, with class names unless other features are given."""
    import datasets

    if features is None:
        features = {
            "image": datasets.Image(),
            "objects": {
                "bbox": datasets.List(datasets.List(datasets.Value("float32"), length=4)),
                "category": datasets.List(datasets.ClassLabel(names=list(NAMES))),
            },
            **{key: datasets.Value("int64") for key in rows[0] if key not in ("image", "objects")},
        }
    made = datasets.Dataset.from_list(list(rows), features=datasets.Features(features))
    datasets.DatasetDict({"train": made}).save_to_disk(str(folder))
    return folder


def assert_holds(split: BoxSplit, scenes: Sequence[Scene]) -> None:
    assert len(split) == len(scenes)
    for index, scene in enumerate(scenes):
        expected = np.array(scene.boxes).reshape(-1, 4)
        np.testing.assert_allclose(split.boxes[index], expected, atol=1e-4)
        assert split.labels[index].tolist() == scene.labels
        assert split.sizes[index].tolist() == list(scene.size)
        assert read_image(split.images[index]).size == scene.size[::-1]


@pytest.mark.parametrize("box_format", FORMATS)
def test_the_data_decide_the_format_of_boxes(tmp_path: Path, box_format: str) -> None:
    save(tmp_path / "saved", [row(scene, box_format) for scene in SCENES])
    assert OBJECTS.recognises(tmp_path / "saved")
    raw = OBJECTS.read(tmp_path / "saved")
    assert raw.facts.box_format == box_format
    assert raw.class_names == NAMES
    assert_holds(raw.splits["train"], SCENES)
    (finding,) = raw.findings
    assert finding.check == "box-format"
    assert finding.severity == "info"
    assert f"({box_format.split('_')[0]})" in finding.message


def test_a_list_of_objects_is_read_as_lists_of_boxes_and_classes(tmp_path: Path) -> None:
    import datasets

    features = {
        "image": datasets.Image(),
        "objects": datasets.List(
            {
                "bbox": datasets.List(datasets.Value("float32"), length=4),
                "label": datasets.ClassLabel(names=list(NAMES)),
                "iscrowd": datasets.Value("bool"),
            }
        ),
        "height": datasets.Value("int64"),
        "width": datasets.Value("int64"),
    }
    rows = [
        {
            "image": encoded(scene),
            "objects": [
                {"bbox": box, "label": label, "iscrowd": label == 1}
                for box, label in zip(stored(scene), scene.labels, strict=True)
            ],
            "height": scene.size[0],
            "width": scene.size[1],
        }
        for scene in SCENES
    ]
    raw = OBJECTS.read(save(tmp_path / "saved", rows, features))
    assert_holds(raw.splits["train"], SCENES)
    assert raw.facts.claimed_sizes["train#0"] == SCENES[0].size
    for is_crowd, labels in zip(raw.splits["train"].is_crowd, raw.splits["train"].labels, strict=True):
        assert is_crowd.tolist() == (labels == 1).tolist()


def test_parquet_files_are_read_with_the_names_in_their_metadata(tmp_path: Path) -> None:
    import datasets

    save(tmp_path / "saved", [row(scene) for scene in SCENES])
    loaded = datasets.load_from_disk(str(tmp_path / "saved"))["train"]
    folder = tmp_path / "parts"
    (folder / "data").mkdir(parents=True)
    loaded.select(range(3)).to_parquet(str(folder / "data" / "train-00000-of-00002.parquet"))
    loaded.select(range(3, 6)).to_parquet(str(folder / "data" / "train-00001-of-00002.parquet"))
    loaded.select(range(6, 8)).to_parquet(str(folder / "data" / "test-00000-of-00001.parquet"))
    for source, sizes in ((folder, (6, 2)), (folder / "data" / "test-00000-of-00001.parquet", (0, 2))):
        assert OBJECTS.recognises(source)
        raw = OBJECTS.read(source)
        assert raw.class_names == NAMES
        found = tuple(len(raw.splits[name]) if name in raw.splits else 0 for name in ("train", "test"))  # type: ignore[index]
        assert found == sizes
        assert_holds(raw.splits["test"], SCENES[6:])


def write_metadata(folder: Path, rows: Sequence[Any]) -> Path:
    (folder / "metadata.jsonl").write_text("".join(json.dumps(content) + "\n" for content in rows))
    return folder


def metadata_row(scene: Scene, names: Sequence[Any] = NAMES) -> dict[str, Any]:
    labels = [names[label] for label in scene.labels]
    return {"file_name": scene.name, "objects": {"bbox": stored(scene), "categories": labels}}


def test_image_folders_with_metadata_are_read(tmp_path: Path) -> None:
    for split, scenes in (("train", SCENES[:5]), ("test", SCENES[5:])):
        write_images(tmp_path / split, scenes)
        write_metadata(tmp_path / split, [metadata_row(scene) for scene in scenes])
    assert OBJECTS.recognises(tmp_path)
    raw = OBJECTS.read(tmp_path)
    assert raw.class_names == NAMES
    assert_holds(raw.splits["train"], SCENES[:5])
    assert_holds(raw.splits["test"], SCENES[5:])
    assert raw.splits["test"].names[0] == f"test/{SCENES[5].name}"


def test_a_column_of_splits_divides_one_table(tmp_path: Path) -> None:
    write_images(tmp_path, SCENES)
    marks = ["train"] * 4 + ["val", "train", "test", "test"]
    rows = [metadata_row(scene) | {"split": mark} for scene, mark in zip(SCENES, marks, strict=True)]
    raw = OBJECTS.read(write_metadata(tmp_path, rows))
    assert_holds(raw.splits["train"], [*SCENES[:4], SCENES[5]])
    assert_holds(raw.splits["validation"], SCENES[4:5])
    assert_holds(raw.splits["test"], SCENES[6:])
    rows[6]["split"] = "tset"
    with pytest.raises(DataError, match=r"row 6 of .*metadata.jsonl belongs to a split named 'tset'"):
        OBJECTS.read(write_metadata(tmp_path, rows))


def test_a_column_of_splits_divides_parquet_with_its_rows_named_apart(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    marks = ["test", "train"] * 4
    rows = [row(scene, split=mark) for scene, mark in zip(SCENES, marks, strict=True)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "scenes.parquet")
    splits = OBJECTS.read(tmp_path).splits
    assert splits["test"].names == tuple(f"scenes.parquet#{number}" for number in (0, 2, 4, 6))
    assert splits["train"].names == tuple(f"scenes.parquet#{number}" for number in (1, 3, 5, 7))


def test_numbers_without_names_are_used_as_names_and_reported(tmp_path: Path) -> None:
    write_images(tmp_path, SCENES)
    write_metadata(tmp_path, [metadata_row(scene, (3, 11, 7)) for scene in SCENES])
    raw = OBJECTS.read(tmp_path)
    assert raw.class_ids == (3, 7, 11)
    assert raw.class_names == ("3", "7", "11")
    assert {finding.check: finding.count for finding in raw.findings} == {
        "unnamed-classes": 3,
        "box-format": 0,
    }


def test_malformed_objects_and_missing_images_are_left_out_and_reported(tmp_path: Path) -> None:
    write_images(tmp_path, SCENES)
    rows = [metadata_row(scene) for scene in SCENES]
    rows[1]["objects"]["bbox"].append([1, 2, 3])
    rows[1]["objects"]["categories"].append("red")
    rows[2]["objects"]["categories"].append("red")
    rows[3]["objects"]["bbox"][0] = "1 2 3 4"
    rows[4]["objects"] = None
    rows[5]["objects"] = [7]
    rows.append({"file_name": "gone.png", "objects": {"bbox": [], "categories": []}})
    rows.append({"file_name": None, "objects": {"bbox": [], "categories": []}})
    raw = OBJECTS.read(write_metadata(tmp_path, rows))
    counts = {finding.check: finding.count for finding in raw.findings}
    assert counts == {"missing-images": 2, "malformed-boxes": 4, "box-format": 0}
    assert len(raw.splits["train"]) == len(SCENES)


def test_labels_beyond_the_names_are_unknown(tmp_path: Path) -> None:
    rows = [row(scene) for scene in SCENES]
    rows[1]["objects"]["category"] = [-1]
    raw = OBJECTS.read(save(tmp_path / "saved", rows))
    assert [*raw.facts.unknown_boxes] == ["train#1"]
    assert len(raw.facts.unknown_boxes["train#1"]) == 1


def test_numbers_that_fit_several_formats_are_reported(tmp_path: Path) -> None:
    scene = lone_scene()
    raw = OBJECTS.read(save(tmp_path / "saved", [row(scene)]))
    (finding,) = raw.findings
    assert (finding.severity, finding.check) == ("warning", "box-format")
    assert "another format" in finding.message
    assert raw.facts.box_format == "xywh"


def test_the_name_of_the_field_tells_the_format(tmp_path: Path) -> None:
    scene = lone_scene()
    write_images(tmp_path, [scene])
    boxes = {"bbox_xyxy": [scene.boxes[0]], "category": ["red"]}
    raw = OBJECTS.read(write_metadata(tmp_path, [{"file_name": "a.png", "objects": boxes}]))
    assert raw.facts.box_format == "xyxy"
    assert raw.splits["train"].boxes[0].tolist() == [[2, 3, 14, 17]]


@pytest.mark.parametrize(
    ("rows", "given"),
    [
        (
            [{"file_name": "gone.png", "objects": {"bbox": [[1, 2, 3, 4]], "category": [1]}}],
            "such as gone.png",
        ),
        (
            [{"file_name": "scene1.png", "objects": {"bbox": [[1, 2, 3, 4]] * 2, "category": [1, "red"]}}],
            "classes are texts ('red') in some rows and numbers in others",
        ),
        (
            [{"picture_file": "scene1.png", "objects": {"bbox": [], "category": []}}],
            "has no column of images",
        ),
        ([{"file_name": 3, "objects": {"bbox": [], "category": []}}], "holds images as int"),
    ],
)
def test_rows_that_cannot_be_used_are_explained(tmp_path: Path, rows: list[Any], given: str) -> None:
    write_images(tmp_path, SCENES)
    with pytest.raises(DataError) as caught:
        OBJECTS.read(write_metadata(tmp_path, rows))
    assert given in caught.value.given
    assert caught.value.remedy


def test_damaged_files_are_explained(tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    file.write_bytes(b"PAR1 no table")
    assert not OBJECTS.recognises(file)
    with pytest.raises(DataError, match="cannot be read as a table"):
        OBJECTS.read(file)
    save(tmp_path / "saved", [row(scene) for scene in SCENES])
    for part in (tmp_path / "saved" / "train").glob("*.arrow"):
        part.write_bytes(b"no arrow")
    with pytest.raises(DataError, match="cannot be read as a saved data set"):
        OBJECTS.read(tmp_path / "saved")
    (tmp_path / "saved" / "dataset_dict.json").write_text("{")
    (tmp_path / "saved" / "train" / "dataset_info.json").write_text("{")
    assert not OBJECTS.recognises(tmp_path / "saved")


def test_columns_of_other_data_are_not_recognised(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"image": [b"x"], "label": [1]}), tmp_path / "images.parquet")
    pq.write_table(pa.table({"translation": [{"en": "x", "de": "y"}]}), tmp_path / "pairs.parquet")
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "a.png", "label": "cat"}\n')
    for name in ("images.parquet", "pairs.parquet", "metadata.jsonl", "missing"):
        assert not OBJECTS.recognises(tmp_path / name)


def test_names_tell_a_data_set_for_detection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    assert is_of_boxes("owner/license-plate-object-detection")
    assert not is_of_boxes("owner/fake-image-detection")
    assert not is_of_boxes("owner/cells")
    info = tmp_path / "owner___cells" / "default" / "0.0.0" / "dataset_info.json"
    info.parent.mkdir(parents=True)
    feature = {"bbox": {"_type": "List"}, "category": {"_type": "List"}}
    info.write_text(json.dumps({"features": {"image": {"_type": "Image"}, "objects": feature}}))
    assert is_of_boxes("owner/cells")


def test_a_name_that_cannot_be_loaded_is_explained() -> None:
    with pytest.raises(DataError, match="cannot be loaded"):
        read_by_name("owner/there-is-no-such-object-detection")


def test_rows_without_an_image_are_unreadable_images(tmp_path: Path) -> None:
    rows = [row(scene) for scene in SCENES]
    rows[2]["image"] = None
    split = OBJECTS.read(save(tmp_path / "saved", rows)).splits["train"]
    assert split.sizes[2].tolist() == [0, 0]
    with pytest.raises(DataError, match="is empty, 0 bytes"):
        read_image(split.images[2])
