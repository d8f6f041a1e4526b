"""COCO's JSON in the layouts that tools write, and what is wrong in files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from making.box_scenes import (
    NAMES,
    assert_holds,
    coco_content,
    of_split,
    varied_scenes,
    varied_splits,
    write_coco,
    write_images,
    write_json,
    write_roboflow,
)
from vitrail.core.errors import DataError
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.tasks.detection.dataset import RawBoxes
from vitrail.tasks.detection.formats import BOX_FORMATS
from vitrail.tasks.detection.samples import BoxSource, join_samples

COCO = BOX_FORMATS["COCO"]
COCO_IDS = (2, 5, 9)  # from 1 on and with gaps


def read_changed(folder: Path, change: Any, number: int = 5) -> RawBoxes:
    """Read one file beside its images after a change of its content."""
    scenes = varied_scenes(number, seed=0)
    write_images(folder, scenes)
    content = coco_content(scenes, ids=COCO_IDS)
    change(content)
    return COCO.read(write_json(folder / "cells.json", content))


@pytest.mark.parametrize("write", [write_coco, partial(write_coco, year="2017"), write_roboflow])
def test_splits_are_read_with_their_boxes(tmp_path: Path, write: Any) -> None:
    scenes = varied_splits()
    write(tmp_path, scenes, ids=COCO_IDS)
    assert COCO.recognises(tmp_path)
    raw = COCO.read(tmp_path)
    assert raw.class_ids == COCO_IDS == raw.facts.declared_class_ids
    assert_holds(raw, scenes)
    assert raw.findings == ()
    assert raw.facts.box_format == "xywh"
    assert set(raw.facts.claimed_sizes) == {name for split in raw.splits.values() for name in split.names}


@pytest.mark.parametrize("place", [".", "images", "data"])
def test_one_file_alone_is_undivided_and_its_images_are_beside_it(tmp_path: Path, place: str) -> None:
    scenes = varied_scenes(6, seed=1)
    write_images(tmp_path / "cells" / place, scenes)
    file = write_json(tmp_path / "cells" / "labels.json", coco_content(scenes))
    for source in (tmp_path, tmp_path / "cells", file):
        assert COCO.recognises(source)
        assert_holds(COCO.read(source), scenes)


def test_the_folder_of_annotations_alone_and_a_file_in_it_can_be_named(tmp_path: Path) -> None:
    scenes = varied_splits()
    write_coco(tmp_path, scenes)
    assert_holds(COCO.read(tmp_path / "annotations"), scenes)
    raw = COCO.read(tmp_path / "annotations" / "instances_val.json")
    assert_holds(raw, of_split(scenes, "validation"))


def test_captions_and_key_points_beside_instances_are_not_read(tmp_path: Path) -> None:
    write_coco(tmp_path, varied_splits())
    content = coco_content(varied_scenes(3, seed=5))
    write_json(tmp_path / "annotations" / "captions_train.json", content)
    assert len(COCO.read(tmp_path).splits["train"]) == 8


def test_file_names_may_hold_folders_and_backslashes(tmp_path: Path) -> None:
    scenes = varied_scenes(4, seed=0)
    write_images(tmp_path / "a" / "b", scenes)
    content = coco_content(scenes)
    for index, image in enumerate(content["images"]):
        image["file_name"] = ("a/b/", "a\\b\\", "/elsewhere/", "../")[index] + image["file_name"]
    content["images"][0]["file_name"] = "a/b/scene0.png"
    (tmp_path / "images").symlink_to(tmp_path / "a" / "b")
    write_json(tmp_path / "all.json", content)
    assert len(COCO.read(tmp_path).splits["train"]) == 4


def test_crowds_are_marked_and_outlines_ignored(tmp_path: Path) -> None:
    def change(content: Any) -> None:
        content["annotations"][1]["iscrowd"] = 1
        content["annotations"][2] |= {"iscrowd": True, "segmentation": {"counts": [1], "size": [2, 3]}}
        content["annotations"][3]["segmentation"] = [[1, 2, 3, 4, 5, 6]]

    raw = read_changed(tmp_path, change)
    flags = np.concatenate(raw.splits["train"].is_crowd).tolist()
    assert flags == [False, True, True, False, False, False]


def test_areas_of_outlines_are_batched_in_the_order_of_their_boxes(tmp_path: Path) -> None:
    def change(content: Any) -> None:
        entries = content["annotations"]
        for number, area in enumerate((7.5, 11, "3", -1)):
            entries[number]["area"] = area
        entries[0]["iscrowd"] = 1

    split = read_changed(tmp_path, change).splits["train"]
    assert np.concatenate(split.areas).tolist() == [7.5, 11, 0, 0, 0, 0]
    source = BoxSource(split, BoxPreprocessing(image_size=(16, 16)))
    batch = join_samples([source.load(index, None) for index in range(len(split))], 3)

    assert [area for sample in batch.samples for area in sample.areas.tolist()] == [7.5, 11, 0, 0, 0, 0]


@pytest.mark.parametrize("suffix", [".PNG", ".jpg"])
def test_names_with_another_suffix_are_found(tmp_path: Path, suffix: str) -> None:
    def change(content: Any) -> None:
        for entry in content["images"]:
            entry["file_name"] = Path(entry["file_name"]).with_suffix(suffix).name

    raw = read_changed(tmp_path, change)

    (finding,) = raw.findings
    assert (finding.check, finding.count) == ("other-suffixes", len(raw.splits["train"]))
    assert finding.items[0] == f"scene0{suffix} (scene0.png)"


def test_classes_are_ordered_by_id_and_kept_without_boxes(tmp_path: Path) -> None:
    def change(content: Any) -> None:
        content["categories"] = [*content["categories"][::-1], {"id": 0, "name": "all"}]

    raw = read_changed(tmp_path, change)
    assert raw.class_names == ("all", *NAMES)
    assert raw.class_ids == (0, *COCO_IDS)
    assert not (np.concatenate(raw.splits["train"].labels) == 0).any()


@pytest.mark.parametrize(
    ("above", "used", "kept"),
    [
        ("none", False, NAMES),  # as Roboflow writes it
        ("none", True, ("shapes", *NAMES)),
        ("things", False, ("shapes", *NAMES)),
    ],
)
def test_the_class_that_names_all_others_is_left_out_without_boxes(
    tmp_path: Path, above: str, used: bool, kept: tuple[str, ...]
) -> None:
    def change(content: Any) -> None:
        for category in content["categories"]:
            category["supercategory"] = "shapes"
        content["categories"].insert(0, {"id": 0, "name": "shapes", "supercategory": above})
        content["annotations"][0]["category_id"] *= not used

    raw = read_changed(tmp_path, change)
    assert raw.class_names == kept
    assert [note.items for note in raw.findings if note.check == "group-class"] == [("shapes",)] * (
        kept == NAMES
    )


def test_equal_class_names_are_told_apart(tmp_path: Path) -> None:
    raw = read_changed(tmp_path, lambda content: content["categories"].append({"id": 11, "name": "red"}))
    assert raw.class_names == (*NAMES, "red (11)")
    assert [finding.check for finding in raw.findings] == ["equal-class-names"]


def test_unknown_classes_are_left_out_and_counted(tmp_path: Path) -> None:
    def change(content: Any) -> None:
        content["annotations"][0]["category_id"] = 77

    raw = read_changed(tmp_path, change)
    assert [*raw.facts.unknown_boxes] == ["scene1.png"]
    assert len(raw.facts.unknown_boxes["scene1.png"]) == 1
    assert raw.facts.boxes_by_class_id[77] == 1
    assert raw.splits["train"].num_boxes == 5
    assert len(raw.splits["train"].labels[1]) == len(raw.splits["train"].is_crowd[1]) == 0


@pytest.mark.parametrize(
    "entry",
    [
        {"bbox": [1, 2, 3]},
        {"bbox": [1, 2, 3, "four"]},
        {"bbox": [1, 2, 3, float("nan")]},
        {"bbox": [1, 2, 3, float("inf")]},
        {"bbox": [1, 2, 3, 10**400]},
        {"bbox": [1, 2, 3, 1e300]},
        {"bbox": [1, 2, 3, True]},
        {"bbox": None},
        {"bbox": {"x": 1}},
        {"category_id": None},
        {"category_id": "reddish"},
        {"bbox": None, "segmentation": {"size": [3, 5], "counts": [2, 3, 10]}},
        {"bbox": None, "keypoints": [1, 2, 2]},
        {"category_id": 2.5},
        {"category_id": [2]},
    ],
)
def test_malformed_boxes_are_left_out_and_reported(tmp_path: Path, entry: Any) -> None:
    raw = read_changed(tmp_path, lambda content: content["annotations"][0].update(entry))
    (finding,) = raw.findings
    assert finding.check == "malformed-boxes"
    assert "cells.json: annotation 0, scene1.png" in finding.items[0]
    assert raw.splits["train"].num_boxes == 5
    assert all(np.isfinite(boxes).all() for boxes in raw.splits["train"].boxes)


def test_names_where_ids_belong_are_read_and_told(tmp_path: Path) -> None:
    expected = read_changed(tmp_path / "ids", lambda content: None)

    def change(content: Any) -> None:
        names = {entry["id"]: entry["name"] for entry in content["categories"]}
        files = {entry["id"]: entry["file_name"] for entry in content["images"]}
        for entry in content["annotations"]:
            entry |= {"category_id": names[entry["category_id"]], "image_id": files[entry["image_id"]]}

    raw = read_changed(tmp_path / "names", change)

    assert [finding.check for finding in raw.findings] == ["names-for-ids"]
    for given, wanted in ((raw.splits["train"], expected.splits["train"]),):
        for part in ("boxes", "labels"):
            for got, want in zip(getattr(given, part), getattr(wanted, part), strict=True):
                np.testing.assert_array_equal(got, want)


def test_malformed_entries_and_repeated_ids_are_reported(tmp_path: Path) -> None:
    def change(content: Any) -> None:
        again = {**content["images"][1], "file_name": "scene0.png"}
        content["images"] += [7, {"id": 1}, {"id": [2], "file_name": "x.png"}, content["images"][0], again]
        content["annotations"] += ["box", {"bbox": [1, 2, 3, 4], "category_id": 2}]

    raw = read_changed(tmp_path, change)
    assert {finding.check: finding.count for finding in raw.findings} == {
        "malformed-entries": 5,
        "repeated-image-ids": 1,
    }
    assert [Path(name).name for name in raw.splits["train"].names] == [f"scene{i}.png" for i in (0, 2, 3, 4)]
    assert raw.splits["train"].num_boxes == 2 + 3 + 0, "the box of the id of two images is of neither"
    assert raw.facts.annotations_without_image == ()


def test_ids_of_two_images_each_are_refused(tmp_path: Path) -> None:
    def change(content: Any) -> None:
        content["images"] += [{**entry, "file_name": f"x{entry['id']}.png"} for entry in content["images"]]

    with pytest.raises(
        DataError, match=r"gives every image id to several images, such as .*scene0.png, x100"
    ):
        read_changed(tmp_path, change)


@pytest.mark.parametrize(("step", "remedy"), [(1, "Subtract 1 from"), (-1, "Add 1 to")])
def test_image_ids_off_by_one_are_refused(tmp_path: Path, step: int, remedy: str) -> None:
    def change(content: Any) -> None:
        for entry in content["annotations"]:
            entry["image_id"] += step
        for index in (0, 4):  # an image without a box at either end
            box = {**content["annotations"][0], "image_id": content["images"][index]["id"] + step}
            content["annotations"].append(box)

    with pytest.raises(DataError, match=f"ids 100 to 104, its annotations .*{remedy} each image_id"):
        read_changed(tmp_path, change)


@pytest.mark.parametrize(
    ("outline", "box"),
    [
        ([[3, 5, 11, 5, 11, 9, 3, 9]], [3, 5, 11, 9]),
        ([[3, 5, 11, 5, 7, 9], [1.5, 7, 2, 8, 1.5, 8]], [1.5, 5, 11, 9]),
        ({"counts": [3, 4], "size": [31, 47]}, None),
        ([[3, 5, 11]], None),
        ([[3, 5, 11, "5"]], None),
        ([], None),
        (None, None),
    ],
)
@pytest.mark.parametrize("absent", [None, []])
def test_boxes_are_those_around_outlines_where_there_are_none(
    tmp_path: Path, outline: Any, box: list[float] | None, absent: Any
) -> None:
    def change(content: Any) -> None:
        content["annotations"][0] |= {"bbox": absent, "segmentation": outline}

    raw = read_changed(tmp_path, change)
    (finding,) = raw.findings
    assert finding.check == ("malformed-boxes" if box is None else "outlines")
    assert raw.splits["train"].boxes[1].tolist() == ([] if box is None else [box])


@pytest.mark.parametrize(("shift", "found"), [(0, []), (1, []), (60, ["outlines-elsewhere"])])
def test_an_outline_in_another_place_than_the_box_is_told(
    tmp_path: Path, shift: float, found: list[str]
) -> None:
    def change(content: Any) -> None:
        left, top, width, height = content["annotations"][0]["bbox"]
        outline = [left + shift, top, left + shift + width, top, left + shift, top + height]
        content["annotations"][0]["segmentation"] = [outline]

    raw = read_changed(tmp_path, change)

    assert [finding.check for finding in raw.findings] == found
    assert raw.splits["train"].num_boxes == 6


def test_annotations_without_image_and_images_without_entry_are_facts(tmp_path: Path) -> None:
    def change(content: Any) -> None:
        content["annotations"].append({"image_id": 999, "bbox": [1, 2, 3, 4], "category_id": 2})
        content["images"][0]["file_name"] = "gone.png"

    raw = read_changed(tmp_path, change)
    assert raw.facts.annotations_without_image == ("gone.png: 0 boxes", "cells.json: image_id 999: 1 box")
    assert raw.facts.unlisted_images == ("scene0.png",)
    assert len(raw.splits["train"]) == 4


def test_numbers_as_texts_join_as_ids(tmp_path: Path) -> None:
    def change(content: Any) -> None:
        for entry in content["annotations"]:
            entry["image_id"], entry["category_id"] = str(entry["image_id"]), float(entry["category_id"])
            entry["bbox"] = list(map(str, entry["bbox"]))

    raw = read_changed(tmp_path, change)
    assert raw.findings == ()
    assert_holds(raw, varied_scenes(5, seed=0))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_tells_the_encoding(tmp_path: Path, encoding: str) -> None:
    file = write_coco(tmp_path, varied_scenes(5, seed=0)) / "annotations" / "instances_train.json"
    file.write_bytes(file.read_text().encode(encoding))
    assert COCO.recognises(tmp_path)
    assert COCO.recognises(file)
    assert_holds(COCO.read(tmp_path), varied_scenes(5, seed=0))


def test_sizes_that_are_not_claimed_are_read_from_headers(tmp_path: Path) -> None:
    def change(content: Any) -> None:
        del content["images"][0]["height"]
        content["images"][1] |= {"height": 0, "width": 0}
        content["images"][2]["width"] = "wide"

    raw = read_changed(tmp_path, change)
    assert raw.splits["train"].sizes[:3].tolist() == [[31, 47], [33, 45], [35, 43]]
    assert "scene0.png" not in raw.facts.claimed_sizes


@pytest.mark.parametrize(
    ("content", "given"),
    [
        (b"", "cannot be read"),
        (b'{"images": [], "annotations": [', "cannot be read: Expecting value"),
        (b'{"images": "\xff"}', "byte 12 is not UTF-8 text"),
        (b"[" * 100000, "nested too deeply"),
        (b"[]", "holds a list, as files of predictions are"),
        (b"3", "holds 3"),
        (b"{}", "has no list 'images' and 'categories', its keys are none"),
        (b'{"images": [], "annotations": {}, "categories": []}', "has no list 'annotations'"),
        (b'{"images": [], "annotations": [], "categories": []}', "has an empty list of categories"),
        (b'{"images": [], "categories": [{"id": "x", "name": "a"}]}', "has the category"),
        (b'{"images": [], "categories": [{"id": 1}]}', "has the category"),
        (b'{"images": [], "categories": [7]}', "has the category 7"),
        (
            b'{"images": [], "categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}',
            "gives the id 1 to the categories 'a' and 'b'",
        ),
        (
            b'{"images": [{"id": 1, "file_name": "no.png"}], "categories": [{"id": 1, "name": "a"}]}',
            "names 1 image and none exists, such as 'no.png'",
        ),
        (b'{"images": [{"id": 1}], "categories": [{"id": 1, "name": "a"}]}', "without a file_name"),
    ],
)
def test_broken_files_are_explained(tmp_path: Path, content: bytes, given: str) -> None:
    file = tmp_path / "instances_train.json"
    file.write_bytes(content)
    for source in (file, tmp_path):
        with pytest.raises(DataError) as caught:
            COCO.read(source)
        assert given in caught.value.given
        assert caught.value.expected
        assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "content", "is_coco"),
    [
        ("annotations.json", b"", True),
        ("boxes.json", b'[{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}]', True),
        ("notes.json", b"", False),
        ("regions.json", b'[{"image": "a.png", "caption": "a cat", "bbox": [1, 2, 3, 4]}]', False),
    ],
)
def test_files_without_images_are_read_where_no_other_is(
    tmp_path: Path, name: str, content: bytes, is_coco: bool
) -> None:
    write_images(tmp_path / "classes" / "cat", varied_scenes(3, seed=0))
    write_images(tmp_path / "set" / "images", varied_scenes(3, seed=0))
    for folder in ("classes", "set"):
        (tmp_path / folder / name).write_bytes(content)
    (tmp_path / "set" / "._hidden.json").write_bytes(content)
    assert not COCO.recognises(tmp_path / "classes")
    tmp_path /= "set"
    assert COCO.recognises(tmp_path) == is_coco
    write_json(tmp_path / "labels.json", coco_content(varied_scenes(3, seed=0)))
    assert_holds(COCO.read(tmp_path), varied_scenes(3, seed=0))


def test_two_files_of_one_split_and_none_with_a_split_are_refused(tmp_path: Path) -> None:
    content = coco_content(varied_scenes(3, seed=0))
    for name in ("train_a.json", "train_b.json"):
        write_json(tmp_path / "twice" / name, content)
    with pytest.raises(DataError, match="both of the train split"):
        COCO.read(tmp_path / "twice")
    for name in ("a.json", "b.json"):
        write_json(tmp_path / "none" / name, content)
    with pytest.raises(DataError, match="none is named by its split"):
        COCO.read(tmp_path / "none")


def test_ids_that_differ_between_splits_are_refused(tmp_path: Path) -> None:
    write_roboflow(tmp_path, varied_splits())
    content = coco_content(of_split(varied_splits(), "test"))
    content["categories"][0]["name"] = "other"
    write_json(tmp_path / "test" / "_annotations.coco.json", content)
    with pytest.raises(DataError, match="the category 'other', and another file to 'blue'"):
        COCO.read(tmp_path)


def test_a_split_with_an_empty_list_has_images_without_boxes(tmp_path: Path) -> None:
    write_coco(tmp_path, varied_splits())
    content = coco_content(of_split(varied_splits(), "test")) | {"annotations": []}
    write_json(tmp_path / "annotations" / "instances_test.json", content)

    raw = COCO.read(tmp_path)

    assert len(raw.splits["test"]) == len(content["images"])
    assert raw.splits["test"].num_boxes == 0
    assert raw.findings == ()


def test_a_split_without_annotations_is_not_used(tmp_path: Path) -> None:
    write_coco(tmp_path, varied_splits())
    content = coco_content(of_split(varied_splits(), "test"))
    del content["annotations"]
    write_json(tmp_path / "annotations" / "instances_test.json", content)
    raw = COCO.read(tmp_path)
    assert set(raw.splits) == {"train", "validation"}
    assert [finding.check for finding in raw.findings] == ["other-annotations"]


def test_other_json_is_not_recognised(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"version": "5", "shapes": [], "imagePath": "a.png"})
    write_json(tmp_path / "b.json", [{"image_id": 1, "bbox": [1, 2, 3, 4]}])
    assert not COCO.recognises(tmp_path)
    assert not COCO.recognises(tmp_path / "a.json")
    assert not COCO.recognises(tmp_path / "missing")


def test_sizes_beyond_all_images_are_no_claim(tmp_path: Path) -> None:
    def change(content: Any) -> None:
        content["images"][0]["height"] = 10**30
        content["images"][1]["width"] = -(10**30)

    raw = read_changed(tmp_path, change)
    assert raw.splits["train"].sizes[:2].tolist() == [[31, 47], [33, 45]]
    assert len(raw.facts.claimed_sizes) == 3
