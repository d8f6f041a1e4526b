"""YOLO's label files in every nesting, with a YAML file or a list of names, and what is wrong in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from making.box_scenes import (
    FOLDERS,
    NAMES,
    assert_holds,
    of_split,
    varied_scenes,
    varied_splits,
    write_images,
    write_yolo,
    write_yolo_part,
    yolo_text,
)
from vitrail.core.errors import DataError
from vitrail.tasks.detection.assembly import AnnotatedBox
from vitrail.tasks.detection.formats import BOX_FORMATS
from vitrail.tasks.detection.formats.yolo import parse_labels

YOLO = BOX_FORMATS["YOLO"]
SHARES = 1e-5  # in pixels, of what was divided by the size and multiplied again
COUNTS = {"train": 8, "validation": 5, "test": 4}


def split_counts(source: Path) -> dict[str, int]:
    return {str(name): len(split) for name, split in YOLO.read(source).splits.items()}


def test_a_yaml_file_names_folders_and_classes(tmp_path: Path) -> None:
    scenes = varied_splits()
    write_yolo(tmp_path, scenes)
    for source in (tmp_path, tmp_path / "data.yaml"):
        assert YOLO.recognises(source)
        raw = YOLO.read(source)
        assert raw.class_ids == (0, 1, 2)
        assert_holds(raw, scenes, atol=SHARES)
        assert raw.findings == ()
        assert raw.facts.box_format == "cxcywh_shares"
        assert raw.facts.claimed_sizes == {}


def test_roboflow_nests_images_in_splits_and_points_one_folder_too_high(tmp_path: Path) -> None:
    for scene in varied_splits():
        folder = tmp_path / scene.split.replace("validation", "valid")
        write_yolo_part(folder / "images", folder / "labels", [scene])
    text = (
        "train: ../train/images\nval: ../valid/images\ntest: ../test/images\nnc: 3\nnames: ['a', 'b', 'c']\n"
    )
    (tmp_path / "data.yaml").write_text(text)
    raw = YOLO.read(tmp_path)
    assert {name: len(split) for name, split in raw.splits.items()} == COUNTS
    assert [finding.check for finding in raw.findings] == ["moved-paths"]
    assert raw.splits["train"].names[0] == "train/images/train-0.png"


@pytest.mark.parametrize(
    "layout",
    ["images/{split}|labels/{split}", "{split}/images|{split}/labels", "images/{split}|{split}/labels",
     "{split}/images|labels/{split}", "{split}|{split}", "{split}|{split}/labels"],
)  # fmt: skip
@pytest.mark.parametrize("with_config", [False, True])
def test_every_nesting_is_found(tmp_path: Path, layout: str, with_config: bool) -> None:
    images, labels = layout.split("|")
    scenes = varied_splits()
    for split, folder in FOLDERS.items():
        folders = (tmp_path / layout.format(split=folder) for layout in (images, labels))
        write_yolo_part(*folders, of_split(scenes, split))
    if with_config:
        lines = [f"{folder}: {images.format(split=folder)}\n" for folder in FOLDERS.values()]
        (tmp_path / "data.yaml").write_text("".join(lines) + "names: {0: blue, 1: green, 2: red}\n")
    else:
        (tmp_path / "classes.txt").write_text("\n".join(NAMES) + "\n\n")
    assert YOLO.recognises(tmp_path)
    raw = YOLO.read(tmp_path)
    assert_holds(raw, scenes, atol=SHARES)
    assert raw.findings == ()


@pytest.mark.parametrize("layout", [".|.", "images|labels", "images|images"])
def test_undivided_folders_are_one_split(tmp_path: Path, layout: str) -> None:
    scenes = varied_scenes(6, seed=0)
    images, labels = layout.split("|")
    write_yolo_part(tmp_path / images, tmp_path / labels, scenes)
    (tmp_path / labels / "classes.txt").write_text("blue\ngreen\nred\n")
    assert YOLO.recognises(tmp_path)
    raw = YOLO.read(tmp_path)
    assert_holds(raw, scenes, atol=SHARES)
    assert raw.facts.annotations_without_image == ()


def test_lists_of_images_divide_as_cvat_writes_them(tmp_path: Path) -> None:
    scenes = varied_scenes(6, seed=0)
    scenes[4].split = scenes[5].split = "validation"
    write_yolo_part(tmp_path / "obj_train_data", tmp_path / "obj_train_data", scenes)
    listed = [f"data/obj_train_data/{scene.name}\n" for scene in scenes]
    (tmp_path / "train.txt").write_text("".join(listed[:4]))
    (tmp_path / "valid.txt").write_text("".join(listed[4:]))
    (tmp_path / "obj.names").write_text("blue\ngreen\nred\n")
    assert YOLO.recognises(tmp_path)
    raw = YOLO.read(tmp_path)
    assert_holds(raw, scenes, atol=SHARES)


def test_a_yaml_file_may_name_lists_and_several_folders(tmp_path: Path) -> None:
    scenes = varied_splits()
    write_yolo(tmp_path, scenes)
    listed = [f"./images/test/{scene.name}" for scene in of_split(scenes, "test")]
    (tmp_path / "test.txt").write_text("\n".join(listed))
    (tmp_path / "data.yaml").write_text(
        "path: .\ntrain: [images/train, images/val]\ntest: test.txt\nval:\nnames: [blue, green, red]\n"
    )
    assert split_counts(tmp_path) == {"train": 13, "test": 4}


def test_paths_of_another_machine_are_found_by_their_ends(tmp_path: Path) -> None:
    write_yolo(tmp_path, varied_splits())
    (tmp_path / "data.yaml").write_text(
        "path: /nowhere/data\ntrain: /nowhere/data/images/train\nval: images\\val\ntest: /nowhere/images\n"
        "names: [blue, green, red]\n"
    )
    raw = YOLO.read(tmp_path)
    assert {name: len(split) for name, split in raw.splits.items()} == {"train": 8, "validation": 5}
    assert {finding.check: finding.count for finding in raw.findings} == {
        "moved-paths": 2,
        "missing-splits": 1,
    }


def test_missing_labels_are_images_without_boxes_and_labels_without_image_are_told(tmp_path: Path) -> None:
    write_yolo(tmp_path, varied_splits())
    (tmp_path / "labels" / "train" / "train-3.txt").unlink()
    (tmp_path / "images" / "train" / "train-1.png").unlink()
    raw = YOLO.read(tmp_path)
    assert raw.facts.images_without_annotations == ("images/train/train-3.png",)
    assert raw.facts.annotations_without_image == ("labels/train/train-1.txt",)
    assert len(raw.splits["train"]) == 7
    assert raw.splits["train"].num_boxes == 8  # 12, without the one of image 1 and the three of image 3


def test_images_that_lie_on_their_side_have_boxes_of_the_upright_image(tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    (tmp_path / "images").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(tmp_path / "images" / "a.jpg", exif=exif)
    (tmp_path / "labels" / "a.txt").write_text("0 0.5 0.5 1 0.5\n")
    (tmp_path / "classes.txt").write_text("red\n")
    split = YOLO.read(tmp_path).splits["train"]
    assert split.sizes.tolist() == [[40, 20]]
    assert split.boxes[0].tolist() == [[0, 10, 20, 30]]


def test_unreadable_images_keep_their_place_with_boxes_of_zeros(tmp_path: Path) -> None:
    write_yolo(tmp_path, varied_splits())
    (tmp_path / "images" / "train" / "train-2.png").write_bytes(b"no image")
    split = YOLO.read(tmp_path).splits["train"]
    assert split.sizes[2].tolist() == [0, 0]
    assert split.boxes[2].tolist() == [[0, 0, 0, 0]] * 2


def test_lines_of_other_kinds_become_boxes_with_a_finding(tmp_path: Path) -> None:
    write_yolo(tmp_path, varied_splits())
    folder = tmp_path / "labels" / "train"
    (folder / "train-0.txt").write_text("1 0.1 0.2 0.5 0.2 0.3 0.8\n1 0.5 0.5 0.2 0.2\n")
    (folder / "train-1.txt").write_text("2 0.5 0.5 0.2 0.2 0.97\n")
    raw = YOLO.read(tmp_path)
    width, height = 47, 31
    np.testing.assert_allclose(
        raw.splits["train"].boxes[0][0],
        [0.1 * width, 0.2 * height, 0.5 * width, 0.8 * height],
        atol=1e-5,
    )
    assert {finding.check: finding.items for finding in raw.findings} == {
        "polygons": ("labels/train/train-0.txt",),
        "confidences": ("labels/train/train-1.txt",),
    }


def test_key_points_are_told_by_the_yaml_file(tmp_path: Path) -> None:
    write_yolo(tmp_path, varied_splits())
    (tmp_path / "labels" / "train" / "train-0.txt").write_text("1 0.5 0.5 0.2 0.4 0.1 0.2 0.3 0.4\n")
    with (tmp_path / "data.yaml").open("a") as file:
        file.write("kpt_shape: [2, 2]\n")
    raw = YOLO.read(tmp_path)
    assert [finding.check for finding in raw.findings] == ["keypoints"]
    np.testing.assert_allclose(
        raw.splits["train"].boxes[0][0], [0.4 * 47, 0.3 * 31, 0.6 * 47, 0.7 * 31], atol=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "mark"),
    [("{},{},{},{},{}", "."), ("{}, {}, {}, {}, {}", "."), ("{};{};{};{};{}", "."), ("{};{};{};{};{}", ","),
     ("{} {} {} {} {}", ",")],
)  # fmt: skip
def test_commas_between_and_in_numbers_are_read_and_told(tmp_path: Path, kind: str, mark: str) -> None:
    scenes = varied_splits()
    write_yolo(tmp_path, scenes)
    for file in (tmp_path / "labels").rglob("*.txt"):
        lines = [line.replace(".", mark).split() for line in file.read_text().splitlines()]
        file.write_text("\n".join(kind.format(*numbers) for numbers in lines))
    (tmp_path / "data.yaml").rename(tmp_path / "classes.txt").write_text("\n".join(NAMES))
    assert YOLO.recognises(tmp_path)

    raw = YOLO.read(tmp_path)

    assert_holds(raw, scenes, atol=SHARES)
    assert [finding.check for finding in raw.findings] == ["commas"]


def test_classes_at_the_end_of_the_lines_are_read_and_told(tmp_path: Path) -> None:
    scenes = varied_splits()
    write_yolo(tmp_path, scenes)
    for file in (tmp_path / "labels").rglob("*.txt"):
        lines = [line.split() for line in file.read_text().splitlines()]
        file.write_text("\n".join(" ".join([*line[1:], line[0]]) for line in lines))

    raw = YOLO.read(tmp_path)

    assert_holds(raw, scenes, atol=SHARES)
    assert [finding.check for finding in raw.findings] == ["class-last"]


@pytest.mark.parametrize(
    "line",
    ["0 0.5 0.5 0.2", "red 0.5 0.5 0.2 0.2", "0 0.5 0,x 0.2 0.2", "0 0.5 nan 0.2 0.2", "0 0.5 inf 0.2 0.2",
     "0.5 0.5 0.5 0.2 0.2", "0 0.5 0.5 0.2 1e99", "0 1 2 3 4 5 6 7", "\0\0\0", "0,0.5,0.5,0.2"],
)  # fmt: skip
def test_malformed_lines_are_left_out_and_reported(tmp_path: Path, line: str) -> None:
    write_yolo(tmp_path, varied_splits())
    file = tmp_path / "labels" / "train" / "train-1.txt"
    file.write_text(f"\n{line}\n{file.read_text()}")
    raw = YOLO.read(tmp_path)
    (finding,) = raw.findings
    assert finding.check == "malformed-boxes"
    assert finding.items[0].startswith("labels/train/train-1.txt: line 2 (")
    assert len(raw.splits["train"].labels[1]) == 1


def test_class_ids_beyond_the_names_are_left_out_and_counted(tmp_path: Path) -> None:
    write_yolo(tmp_path, varied_splits())
    (tmp_path / "labels" / "train" / "train-0.txt").write_text(
        "3 0.5 0.5 0.2 0.2\n2.0 0.5 0.5 0.2 0.2\n-1 0.5 0.5 0.2 0.2\n"
    )
    raw = YOLO.read(tmp_path)
    assert [*raw.facts.unknown_boxes] == ["images/train/train-0.png"]
    assert len(raw.facts.unknown_boxes["images/train/train-0.png"]) == 2
    assert raw.facts.boxes_by_class_id[3] == raw.facts.boxes_by_class_id[-1] == 1
    assert raw.splits["train"].labels[0].tolist() == [2]


def test_labels_that_are_no_text_leave_their_images_out(tmp_path: Path) -> None:
    write_yolo(tmp_path, varied_splits())
    (tmp_path / "labels" / "train" / "train-1.txt").write_bytes(b"\xff\xfe0")
    raw = YOLO.read(tmp_path)
    assert len(raw.splits["train"]) == 7
    assert [finding.check for finding in raw.findings] == ["unreadable-annotations"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le", "utf-16-be"])
def test_files_of_other_programs_are_read_by_their_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    write_yolo(tmp_path, varied_splits())
    mark = "" if encoding == "utf-8-sig" else "\ufeff"
    for path in [tmp_path / "data.yaml", *(tmp_path / "labels").rglob("*.txt")]:
        path.write_bytes((mark + path.read_text()).encode(encoding))
        path.rename(path.with_suffix(path.suffix.upper() if path.suffix == ".txt" else path.suffix))
    assert YOLO.recognises(tmp_path)
    assert_holds(YOLO.read(tmp_path), varied_splits(), atol=SHARES)


def test_gaps_in_the_names_are_closed(tmp_path: Path) -> None:
    write_yolo(tmp_path, varied_splits())
    (tmp_path / "data.yaml").write_text(
        "train: images/train\nnames: {2: red, 0: blue, '1': 7, 40: rice}\nnc: 41\n"
    )
    raw = YOLO.read(tmp_path)
    assert raw.class_names == ("blue", "7", "red", "rice")
    assert raw.class_ids == (0, 1, 2, 40)
    assert [finding.check for finding in raw.findings] == ["class-count"]


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("train: images/train\nnc: 3\n", "data.yaml has no names"),
        ("train: images/train\nnames: 3\n", "says names: 3"),
        ("train: images/train\nnames: {a: b}\n", "names the class 'a': 'b'"),
        ("train: images/train\nnames: [[1], b]\n", "names the class 0: [1]"),
        ("train: images/train\nnames: [a, null]\n", "names the class 1: None"),
        ("train: {a: b}\nnames: [a]\n", "says train: {'a': 'b'}"),
        ("train: images/train\nnames: [a\n", "cannot be read"),
        ("train: images/train\nnames: !!python/object:os.system [a]\n", "cannot be read"),
        (
            "train: nowhere\nnames: [a, b, c]\n",
            "folders that are not there or hold no image (train: nowhere)",
        ),
    ],
)
def test_faulty_yaml_files_are_explained(tmp_path: Path, text: str, given: str) -> None:
    write_yolo(tmp_path, varied_splits())
    (tmp_path / "data.yaml").write_text(text)
    for source in (tmp_path, tmp_path / "data.yaml"):
        with pytest.raises(DataError) as caught:
            YOLO.read(source)
        assert given in caught.value.given
        assert caught.value.expected
        assert "relative to" not in caught.value.expected or str(tmp_path) in caught.value.expected
        assert caught.value.remedy


def test_folders_of_another_machine_are_sought_beside_the_file(tmp_path: Path) -> None:
    write_yolo(tmp_path, varied_splits())
    (tmp_path / "data.yaml").write_text("train: C:\\Users\\Ann\\there\nnames: [a, b, c]\n")

    raw = YOLO.read(tmp_path)

    assert {name: len(split) for name, split in raw.splits.items()} == {
        "train": 8,
        "validation": 5,
        "test": 4,
    }
    assert [finding.check for finding in raw.findings] == ["moved-paths"]


@pytest.mark.parametrize("content", [b"", b"- a\n- b\n", b"\xff\xfe\x00", b"a: b\n" * 300_000])
def test_files_that_are_no_mapping_are_explained(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "data.yaml"
    file.write_bytes(content)
    assert not YOLO.recognises(file)
    with pytest.raises(DataError):
        YOLO.read(file)


def test_folders_that_cannot_be_used_are_explained(tmp_path: Path) -> None:
    scenes = varied_scenes(4, seed=0)
    write_yolo_part(tmp_path / "a" / "images", tmp_path / "a" / "labels", scenes)
    with pytest.raises(DataError, match="has no file of class names, so that the classes have numbers alone"):
        YOLO.read(tmp_path / "a")
    (tmp_path / "a" / "classes.txt").write_bytes(b"\xff\xfa")
    with pytest.raises(DataError, match="is not UTF-8 text"):
        YOLO.read(tmp_path / "a")
    write_yolo(tmp_path / "b", scenes)
    for file in (tmp_path / "b" / "labels" / "train").iterdir():
        file.unlink()
    (tmp_path / "b" / "labels" / "train").rmdir()
    (tmp_path / "b" / "labels").rmdir()
    with pytest.raises(DataError, match="holds 4 images and no label file"):
        YOLO.read(tmp_path / "b")
    write_yolo(tmp_path / "c", scenes)
    (tmp_path / "c" / "data.yaml").rename(tmp_path / "c" / "one.yaml")
    (tmp_path / "c" / "two.yml").write_text((tmp_path / "c" / "one.yaml").read_text())
    with pytest.raises(DataError, match=r"2 YAML files of data sets: one\.yaml, two\.yml"):
        YOLO.read(tmp_path / "c")


def test_a_split_without_a_folder_of_labels_is_not_used(tmp_path: Path) -> None:
    write_yolo(tmp_path, varied_splits())
    for file in (tmp_path / "labels" / "test").iterdir():
        file.unlink()
    (tmp_path / "labels" / "test").rmdir()
    raw = YOLO.read(tmp_path)
    assert set(raw.splits) == {"train", "validation"}
    assert [finding.check for finding in raw.findings] == ["unlabelled-folders"]


def test_other_texts_beside_images_are_not_recognised(tmp_path: Path) -> None:
    write_images(tmp_path, varied_scenes(3, seed=0))
    (tmp_path / "scene0.txt").write_text("a photo of a bean\n")
    (tmp_path / "notes.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    (tmp_path / "model.yaml").write_text("name: a\nlayers: 3\n")
    assert not YOLO.recognises(tmp_path)
    assert not YOLO.recognises(tmp_path / "model.yaml")


def test_the_lines_of_a_file() -> None:
    text = yolo_text(varied_scenes(4, seed=0)[3]) + "\n  \n\t1\t.5  5e-1 1.0 +0.25 \r\n"
    boxes, kinds, malformed = parse_labels(text)
    assert len(boxes) == 4
    assert boxes[-1] == AnnotatedBox([0.5, 0.5, 1.0, 0.25], 1)
    assert malformed == []
    assert kinds == set()


def test_coco128(shared_data: Path) -> None:
    folder = shared_data / "coco128"
    if not folder.is_dir():
        pytest.skip("no folder coco128 in ../shared/data")
    assert YOLO.recognises(folder)
    raw: Any = YOLO.read(folder)
    split = raw.splits["train"]
    assert len(split) == 128
    assert split.num_boxes == 929  # 941 lines by wc, 12 of them in the two files without an image
    assert len(raw.class_names) == 80
    assert raw.class_names[79] == "toothbrush"
    assert len(raw.facts.images_without_annotations) == len(raw.facts.annotations_without_image) == 2
    assert all((part[:, 2:] > part[:, :2]).all() for part in split.boxes)
    assert {finding.check for finding in raw.findings} == {"moved-paths", "missing-splits"}


def test_links_that_lead_back_are_entered_once(tmp_path: Path) -> None:
    write_yolo(tmp_path, varied_splits())
    (tmp_path / "images" / "train" / "again").symlink_to(tmp_path / "images" / "train")
    (tmp_path / "images" / "test" / "up").symlink_to(tmp_path)
    raw = YOLO.read(tmp_path / "data.yaml")
    assert len(raw.splits["train"]) == COUNTS["train"]


@pytest.mark.parametrize("form", ["[{}]", "{{<<: [{}]}}"], ids=["aliases", "merges"])
def test_references_in_yaml_cannot_grow_without_bound(tmp_path: Path, form: str) -> None:
    levels = "".join(f"a{i + 1}: &a{i + 1} {form.format(', '.join([f'*a{i}'] * 9))}\n" for i in range(12))
    file = tmp_path / "data.yaml"
    first = "[x]" if form == "[{}]" else "{x: 1}"
    file.write_text(f"a0: &a0 {first}\n{levels}train: images\nnames: [a, b]\n")
    with pytest.raises(DataError, match="200,000 values with its aliases written out"):
        YOLO.read(file)
