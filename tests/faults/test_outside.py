"""Annotations of a stranger lead to no file outside of the data: nothing there is read or copied."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.core.errors import DataError
from vitrail.tasks.captioning.opening import open_captions
from vitrail.tasks.detection.fix import write_clean
from vitrail.tasks.detection.formats import BOX_FORMATS
from vitrail.tasks.detection.opening import open_boxes

SECRET = 201  # grey level of the image that no annotation may reach
VOC = (
    "<annotation><filename>{}</filename><object><name>a</name><bndbox><xmin>1</xmin><ymin>1</ymin>"
    "<xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"
)


def save(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(level).integers(level - 9, level, (24, 24), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def coco(data: Path, name: str) -> None:
    names = [*(f"{number}.png" for number in range(9)), name]
    images = [{"id": number, "file_name": each} for number, each in enumerate(names)]
    boxes = [{"image_id": each["id"], "category_id": 1, "bbox": [2, 3, 9, 9]} for each in images]
    categories = [{"id": 1, "name": "a"}]
    content = {"images": images, "annotations": boxes, "categories": categories}
    write(data / "annotations.json", json.dumps(content))


def voc(data: Path, name: str) -> None:
    for stem in [*map(str, range(9)), "other"]:
        write(data / "Annotations" / f"{stem}.xml", VOC.format(name if stem == "other" else f"{stem}.png"))


def objects(data: Path, name: str) -> None:
    names = [*(f"{number}.png" for number in range(9)), name]
    rows = [{"file_name": each, "objects": {"bbox": [[2, 3, 9, 9]], "category": [0]}} for each in names]
    write(data / "metadata.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def yolo(data: Path, name: str) -> None:
    write(data / "data.yaml", "train: list.txt\nval: list.txt\nnames: [a]\n")
    write(data / "list.txt", "".join(f"{number}.png\n" for number in range(9)) + f"{name}\n")
    for number in range(9):
        write(data / "labels" / f"{number}.txt", "0 0.5 0.5 0.3 0.3\n")
    write(Path(os.path.join(data, name)).with_suffix(".txt"), "0 0.5 0.5 0.3 0.3\n")


def yolo_folders(data: Path, name: str) -> None:
    yolo(data, name)
    folder = os.path.dirname(name)
    write(data / "data.yaml", f"path: {folder}\ntrain: {folder}\nval: [., {folder}]\nnames: [a]\n")


BOXES: tuple[Callable[[Path, str], None], ...] = (coco, voc, objects, yolo, yolo_folders)


@pytest.mark.parametrize("kind", ["above", "absolute", "through"])
@pytest.mark.parametrize("annotate", BOXES, ids=lambda annotate: annotate.__name__)
def test_boxes_are_of_images_of_the_data_alone(
    tmp_path: Path, annotate: Callable[[Path, str], None], kind: str
) -> None:
    data, secret = tmp_path / "data", tmp_path / "secret" / "inner" / "own.png"
    save(secret, SECRET)
    for number in range(9):
        save(data / f"{number}.png", 20 + 10 * number)
    names = {"above": "../secret/inner/own.png", "absolute": str(secret)}
    annotate(data, names.get(kind, "labels/../../secret/inner/own.png"))
    dataset = open_boxes(data)
    assert sum(len(split) for split in dataset.splits.values()) >= 9
    for split in dataset.splits.values():
        for image in split.images:
            assert Path(os.path.abspath(image)).is_relative_to(data)
    write_clean(dataset, tmp_path / "clean")
    copied = [np.asarray(Image.open(file)).max() for file in (tmp_path / "clean").rglob("*.png")]
    assert copied
    assert max(copied) < SECRET - 9


@pytest.mark.parametrize("is_absolute", [False, True])
def test_settings_that_are_named_themselves_may_lead_elsewhere(tmp_path: Path, is_absolute: bool) -> None:
    for number in range(9):
        save(tmp_path / "elsewhere" / "images" / f"{number}.png", 20 + 10 * number)
        write(tmp_path / "elsewhere" / "labels" / f"{number}.txt", "0 0.5 0.5 0.3 0.3\n")
    place = tmp_path / "elsewhere" if is_absolute else "../elsewhere"
    write(tmp_path / "data" / "data.yaml", f"path: {place}\ntrain: images\nval: images\nnames: [a]\n")
    assert len(BOX_FORMATS["YOLO"].read(tmp_path / "data" / "data.yaml").splits["train"]) == 9
    with pytest.raises(DataError, match=f"name the file itself if they lie outside of {tmp_path / 'data'}"):
        BOX_FORMATS["YOLO"].read(tmp_path / "data")


@pytest.mark.parametrize("is_named", [False, True])
def test_files_below_the_folder_of_the_variable_are_read(
    tmp_path: Path, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "far" / "other" / "own.png", SECRET)
    for number in range(9):
        save(tmp_path / "near" / "data" / f"{number}.png", 20 + 10 * number)
    coco(tmp_path / "near" / "data", "../../far/other/own.png")
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path / "far") if is_named else "")
    number = sum(len(split) for split in open_boxes(tmp_path / "near" / "data").splits.values())
    assert number == 9 + is_named


def test_a_file_that_is_named_itself_may_lead_to_the_folders_beside_its_own(tmp_path: Path) -> None:
    save(tmp_path / "photos" / "own.png", SECRET)
    for number in range(9):
        save(tmp_path / "data" / f"{number}.png", 20 + 10 * number)
    coco(tmp_path / "data", "../photos/own.png")
    for source, number in ((tmp_path / "data" / "annotations.json", 10), (tmp_path / "data", 9)):
        assert sum(len(split) for split in open_boxes(source).splits.values()) == number


def test_links_in_the_data_are_followed(tmp_path: Path) -> None:
    """Whoever unpacked the data made them, or let them in: archives are unpacked without links that leave."""
    for number in range(9):
        save(tmp_path / "disk" / f"{number}.png", 20 + 10 * number)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "images").symlink_to(tmp_path / "disk")
    coco(tmp_path / "data", "0.png")
    assert sum(len(split) for split in open_boxes(tmp_path / "data").splits.values()) == 10


def coco_captions(data: Path, name: str) -> None:
    images = [{"id": 0, "file_name": "a.png"}, {"id": 1, "file_name": name}]
    texts = [{"image_id": number, "caption": f"grey {number}"} for number in range(2)]
    write(data / "captions_train.json", json.dumps({"images": images, "annotations": texts}))


def karpathy(data: Path, name: str) -> None:
    texts = [{"raw": "grey"}]
    images = [{"filename": each, "sentences": texts, "split": "train"} for each in ("a.png", name)]
    write(data / "dataset_flickr8k.json", json.dumps({"images": images}))


def flickr(data: Path, name: str) -> None:
    write(data / "Flickr8k.token.txt", f"a.png#0\tgrey\n{name}#0\tgrey\n")


@pytest.mark.parametrize("kind", ["above", "absolute"])
@pytest.mark.parametrize("annotate", [coco_captions, karpathy, flickr], ids=lambda each: each.__name__)
def test_captions_are_of_images_of_the_data_alone(
    tmp_path: Path, annotate: Callable[[Path, str], None], kind: str
) -> None:
    data, secret = tmp_path / "above" / "data", tmp_path / "secret" / "own.png"
    save(secret, SECRET)
    save(data / "a.png", 20)
    annotate(data, "../../secret/own.png" if kind == "above" else str(secret))
    dataset = open_captions(str(data))
    images = [image for split in dataset.splits.values() for image in split.images]
    assert images == [data / "a.png"]
