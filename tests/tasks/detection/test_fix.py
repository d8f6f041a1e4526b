"""A clean copy has no fault that can be mended, its boxes lie on their objects, its source is untouched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from making.box_scenes import (
    CLASS_COLOURS,
    NAMES,
    WRITERS,
    Scene,
    as_corners,
    as_xywh,
    boxes_in_memory,
    cxcywh_shares,
    in_shares,
    make_scenes,
    write_coco,
    write_voc,
    write_yolo,
)
from vitrail.cli import main
from vitrail.core.errors import CheckpointError, DataError
from vitrail.data.images import read_image
from vitrail.tasks.detection import fix as box_fix
from vitrail.tasks.detection.dataset import BoxDataset, BoxSplit
from vitrail.tasks.detection.doctor import check_boxes
from vitrail.tasks.detection.fix import Fixed, write_clean
from vitrail.tasks.detection.opening import open_boxes


def fix(source: Path, folder: Path) -> Fixed:
    dataset = open_boxes(source)
    return write_clean(dataset, folder)


def checks(source: Path) -> set[str]:
    return {finding.check for finding in check_boxes(open_boxes(source)).findings}


def assert_boxes_lie_on_their_colours(dataset: BoxDataset) -> None:
    for split in dataset.splits.values():
        for image, boxes, labels in zip(split.images, split.boxes, split.labels, strict=True):
            pixels = np.asarray(read_image(image)).astype(int)
            for (left, top, right, bottom), label in zip(np.round(boxes).astype(int), labels, strict=True):
                inside = pixels[top:bottom, left:right].reshape(-1, 3)
                colour = np.array(CLASS_COLOURS[dataset.class_names[label]])
                off = np.abs(inside - colour).max(axis=1) > 40
                assert off.mean() < 0.12, "the box is not where the rectangle is"


@pytest.mark.parametrize("layout", list(WRITERS))
def test_a_clean_set_stays_as_it_is(tmp_path: Path, layout: str) -> None:
    scenes = make_scenes()
    source = WRITERS[layout](tmp_path / "set", scenes)

    fixed = fix(source, tmp_path / "clean")

    copy = open_boxes(tmp_path / "clean")
    assert fixed.changes == {}
    assert fixed.summary()[0] == "nothing had to be changed"
    assert fixed.images == {"train": 12, "validation": 4, "test": 4}
    assert check_boxes(copy).findings == ()
    assert copy.class_names == NAMES
    assert copy.class_ids == (1, 2, 3)
    assert [Path(name).name for name in copy.test.names] == [f"test-{index}.png" for index in range(4)]
    by_name = {scene.name: scene for scene in scenes}
    for name, boxes in zip(copy.train.names, copy.train.boxes, strict=True):
        np.testing.assert_allclose(boxes, by_name[Path(name).name].boxes, atol=0.001)
    assert copy.train.images[3].read_bytes() == open_boxes(source).train.images[3].read_bytes()


def test_ids_that_the_copy_has_not_are_told(tmp_path: Path) -> None:
    source = write_coco(tmp_path / "set", make_scenes())
    for file in (source / "annotations").glob("*.json"):
        content = json.loads(file.read_text())
        for entry in content["categories"]:
            entry["id"] *= 5
        for entry in content["annotations"]:
            entry["category_id"] *= 5
        file.write_text(json.dumps(content))

    fixed = fix(source, tmp_path / "clean")

    old = dict(zip(open_boxes(source).class_names, open_boxes(source).class_ids, strict=True))
    assert fixed.class_ids == {name: (old[name], place) for place, name in enumerate(old, start=1)}
    assert (
        "count from 1: " + ", ".join(f"{name} {old[name]} to" for name in list(old)[:1])
        in fixed.summary()[-2]
    )


def swap(scenes: list[Scene]) -> None:
    left, top, right, bottom = scenes[1].boxes[2]
    scenes[1].boxes[2] = [right, bottom, left, top]


def add(*box: float) -> Callable[[list[Scene]], None]:
    def plant(scenes: list[Scene]) -> None:
        scenes[1].boxes.append([*box])
        scenes[1].labels.append(1)

    return plant


def repeat(scenes: list[Scene]) -> None:
    scenes[1].boxes.append([number + 0.25 for number in scenes[1].boxes[2]])
    scenes[1].labels.append(2)


def put_at_corner(scenes: list[Scene]) -> None:
    """Annotate more than the image has of a rectangle at its edge."""
    scene = scenes[1]
    scene.pixels[-12:, -11:] = CLASS_COLOURS["green"]
    scene.boxes.append([86, 49, 140, 90])
    scene.labels.append(1)


MENDED = [
    (swap, "inverted", "swapped"),
    (add(20, 30, 20, 44), "zero-area", "empty"),
    (add(200, 30, 220, 44), "outside", "outside"),
    (repeat, "repeated-boxes", "duplicate"),
    (put_at_corner, "beyond-edge", "clipped"),
]


@pytest.mark.parametrize(("plant", "code", "change"), MENDED)
@pytest.mark.parametrize("layout", list(WRITERS))
def test_each_mendable_fault_is_gone(
    tmp_path: Path, plant: Callable[[list[Scene]], None], code: str, change: str, layout: str
) -> None:
    scenes = make_scenes()
    plant(scenes)
    source = WRITERS[layout](tmp_path / "set", scenes)
    assert code in checks(source)

    fixed = fix(source, tmp_path / "clean")

    if (layout, change) == ("coco", "swapped"):  # of a negative width, the corner is unknown
        change = "negative"
    assert fixed.changes == {change: 1}
    assert "train-1.png: box" in fixed.items[change][0]
    assert not checks(tmp_path / "clean")
    assert_boxes_lie_on_their_colours(open_boxes(tmp_path / "clean"))


def test_doubts_about_a_turn_are_told_with_the_copy(tmp_path: Path) -> None:
    scenes = make_scenes()
    scenes[1].name, scenes[1].orientation = "half.jpg", 3

    fixed = fix(write_coco(tmp_path / "set", scenes), tmp_path / "clean")

    assert fixed.changes == {"upright": 1, "unclear-turn": 1}
    assert fixed.summary()[1].startswith("1 image whose boxes may be for the pixels as stored")


def stored_box(box: list[float], orientation: int, height: int, width: int) -> list[float]:
    left, top, right, bottom = box
    return {
        6: [top, width - right, bottom, width - left],
        8: [height - bottom, left, height - top, right],
    }[orientation]


@pytest.mark.parametrize("orientation", [6, 8])
@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_images_and_boxes_that_exif_turns_become_upright(
    tmp_path: Path, orientation: int, suffix: str
) -> None:
    scenes = make_scenes()
    height, width = scenes[1].pixels.shape[:2]
    scenes[1].name = f"turned{suffix}"
    scenes[1].orientation, scenes[1].claimed = orientation, (width, height)
    scenes[1].boxes = [stored_box(box, orientation, height, width) for box in scenes[1].boxes]

    fixed = fix(write_coco(tmp_path / "set", scenes), tmp_path / "clean")

    assert fixed.changes == {"upright": 1, "turned": 3}
    copy = open_boxes(tmp_path / "clean")
    with Image.open(tmp_path / "clean" / "train" / scenes[1].name) as image:
        assert image.size == (width, height)
        assert image.getexif().get(0x0112, 1) == 1
    assert check_boxes(copy).findings == ()
    assert_boxes_lie_on_their_colours(copy)


def test_boxes_for_another_size_are_scaled(tmp_path: Path) -> None:
    scenes = make_scenes()
    scenes[1].claimed = tuple(3 * side for side in scenes[1].pixels.shape[:2])
    scenes[1].boxes = [[3 * number for number in box] for box in scenes[1].boxes]

    fixed = fix(write_voc(tmp_path / "set", scenes), tmp_path / "clean")

    assert fixed.changes == {"scaled": 3}
    assert not checks(tmp_path / "clean")
    assert_boxes_lie_on_their_colours(open_boxes(tmp_path / "clean"))


def test_corners_that_are_all_swapped_are_put_in_order(tmp_path: Path) -> None:
    source = write_voc(tmp_path / "set", make_scenes(), to_numbers=lambda box, _: [*box[2:], *box[:2]])

    assert fix(source, tmp_path / "clean").changes == {"swapped": 60}
    assert_boxes_lie_on_their_colours(open_boxes(tmp_path / "clean"))


def test_areas_of_the_objects_are_kept(tmp_path: Path) -> None:
    scenes = make_scenes()
    scenes[1].claimed = tuple(3 * side for side in scenes[1].pixels.shape[:2])
    scenes[1].boxes = [[3 * number for number in box] for box in scenes[1].boxes]
    source = write_coco(tmp_path / "set", scenes)
    file = source / "annotations" / "instances_train.json"
    content = json.loads(file.read_text())
    given = [55.5, 0, 1e9, 90, None, 99.9]  # of the boxes of two images, the second at three times its size
    for entry, area in zip(content["annotations"], given, strict=False):
        entry["area"] = area
    file.write_text(json.dumps(content))

    fix(source, tmp_path / "clean")

    entries = json.loads((tmp_path / "clean/annotations/instances_train.json").read_text())["annotations"]
    of_boxes = [entry["bbox"][2] * entry["bbox"][3] for entry in entries]
    expected = [55.5, of_boxes[1], of_boxes[2], 10, of_boxes[4], 11.1, *of_boxes[6:]]
    assert [entry["area"] for entry in entries] == pytest.approx(expected)


OTHER_NUMBERS = {
    "coco": as_corners,
    "voc": as_xywh,
    "yolo": in_shares(as_corners),
}
"""Numbers that are not what a format of files claims: corners, or width and height for Pascal VOC."""


def test_unreadable_images_and_copies_in_later_splits_are_left_out(tmp_path: Path) -> None:
    scenes = make_scenes()
    scenes[2].stored = b"this is no picture"
    for index in (13, 17):  # of validation and of test
        scenes[index].pixels, scenes[index].boxes = scenes[5].pixels, scenes[5].boxes

    fixed = fix(write_yolo(tmp_path / "set", scenes), tmp_path / "clean")

    assert fixed.images == {"train": 11, "validation": 3, "test": 3}
    assert fixed.changes == {"unreadable": 1, "copy": 2, "left-out": 9}
    assert not checks(tmp_path / "clean")


@pytest.mark.parametrize(
    ("layout", "used_ids"),
    [("coco", (2, 3, 4)), ("coco", (0, 1, 2)), ("yolo", (1, 2, 3)), ("coco", (4, 5, 6))],
)
def test_ids_that_are_off_by_one_get_the_class_that_is_meant(
    tmp_path: Path, layout: str, used_ids: tuple[int, ...]
) -> None:
    ids = {"ids": (3, 4, 5)} if used_ids[0] == 4 else {}
    source = WRITERS[layout](tmp_path / "set", make_scenes(), used_ids=used_ids, **ids)
    assert "class-ids-off-by-one" in checks(source)

    fixed = fix(source, tmp_path / "clean")

    assert fixed.changes == {"renumbered": 60}
    copy = open_boxes(tmp_path / "clean")
    assert check_boxes(copy).findings == ()
    assert copy.class_names == NAMES
    assert copy.train.num_boxes == 36
    assert_boxes_lie_on_their_colours(copy)


@pytest.mark.parametrize("is_alone", [False, True])
def test_boxes_without_a_class_are_dropped_and_an_image_of_no_other_with_them(
    tmp_path: Path, is_alone: bool
) -> None:
    scenes = make_scenes()
    scenes[1].boxes = [*([] if is_alone else scenes[1].boxes), [5, 6, 20, 22]]
    scenes[1].labels = [*([] if is_alone else scenes[1].labels), 3]

    fixed = fix(write_yolo(tmp_path / "set", scenes, used_ids=(0, 1, 2, 7)), tmp_path / "clean")

    assert fixed.changes == {"unknown-class": 1} | ({"emptied": 1} if is_alone else {})
    assert fixed.items["unknown-class"] == ["images/train/train-1.png: a box of class id 7"]
    assert fixed.boxes["train"] == 36 - 3 * is_alone
    assert fixed.images["train"] == 12 - is_alone


def test_ids_are_made_contiguous(tmp_path: Path) -> None:
    fix(write_coco(tmp_path / "set", make_scenes(), ids=(3, 17, 90)), tmp_path / "clean")

    tree = json.loads((tmp_path / "clean" / "annotations" / "instances_train.json").read_text())
    assert [category["id"] for category in tree["categories"]] == [1, 2, 3]
    assert [image["id"] for image in tree["images"]] == list(range(1, 13))
    assert [entry["id"] for entry in tree["annotations"]] == list(range(1, 37))
    assert {entry["category_id"] for entry in tree["annotations"]} == {1, 2, 3}


def test_the_source_is_never_touched(tmp_path: Path) -> None:
    scenes = make_scenes()
    for plant, _, _ in MENDED:
        plant(scenes)
    scenes[3].orientation = 3
    source = write_voc(tmp_path / "set", scenes)

    def state() -> dict[Path, tuple[int, bytes]]:
        return {
            path: (path.stat().st_mtime_ns, b"" if path.is_dir() else path.read_bytes())
            for path in [source, *source.rglob("*")]
        }

    before = state()

    fix(source, tmp_path / "clean")

    assert state() == before


def test_a_folder_with_files_is_refused_and_an_empty_one_filled(tmp_path: Path) -> None:
    source = write_coco(tmp_path / "set", make_scenes())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep me")
    (tmp_path / "empty").mkdir()

    with pytest.raises(DataError, match="not empty"):
        fix(source, tmp_path / "full")
    fix(source, tmp_path / "empty")

    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    assert len(open_boxes(tmp_path / "empty").train) == 12


@pytest.mark.parametrize("inside", [".", "clean", "train/clean"])
def test_a_folder_in_the_source_is_refused(
    tmp_path: Path, inside: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_coco(tmp_path / "set", make_scenes())

    with pytest.raises(DataError, match=r"lies in the data set|not empty"):
        fix(source, source / inside)

    assert not (source / "clean").exists()
    assert main(["check", str(source), "--fix", str(source / inside)]) == 2
    printed = capsys.readouterr()
    assert not printed.out  # refused before the data is checked
    assert str(source) in printed.err


def test_a_copy_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_coco(tmp_path / "set", make_scenes())
    original, calls = box_fix.copy_of, []

    def fail_later(*arguments: object, **named: object) -> tuple[str, bytes]:
        calls.append(arguments)
        if len(calls) == 5:
            raise OSError(28, "No space left on device")
        return original(*arguments, **named)

    monkeypatch.setattr(box_fix, "copy_of", fail_later)

    with pytest.raises(CheckpointError, match="No space left"):
        fix(source, tmp_path / "clean")

    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_pixels_groups_and_equal_file_names_are_kept(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, size=(3, 20, 31, 3), dtype=np.uint8)
    boxes, labels = [np.array([[1, 2, 9, 14]])] * 3, [np.zeros(1)] * 3
    crowd = [np.array([index == 1]) for index in range(3)]
    split = BoxSplit(
        images, boxes, labels, ["a/x", "b/x", "c/X"], sizes=np.array([[20, 31]] * 3), is_crowd=crowd
    )
    dataset = boxes_in_memory(split, class_names=("one",))

    write_clean(dataset, tmp_path / "clean")

    names = sorted(path.name for path in (tmp_path / "clean" / "train").iterdir())
    assert names == ["X-3.png", "x-2.png", "x.png"]
    tree = json.loads((tmp_path / "clean" / "annotations" / "instances_train.json").read_text())
    assert [entry["iscrowd"] for entry in tree["annotations"]] == [0, 1, 0]
    for entry, pixels in zip(tree["images"], images, strict=True):
        np.testing.assert_array_equal(
            np.asarray(read_image(tmp_path / "clean" / "train" / entry["file_name"])), pixels
        )


def test_a_set_without_any_readable_image_is_refused(tmp_path: Path) -> None:
    scenes = make_scenes(train=3, validation=2, test=2)
    source = write_coco(tmp_path / "set", scenes)
    for path in source.rglob("*.png"):
        path.write_bytes(b"")

    with pytest.raises(DataError, match="no image"):
        fix(source, tmp_path / "clean")

    assert not (tmp_path / "clean").exists()


@pytest.mark.parametrize(("layout", "numbers"), OTHER_NUMBERS.items())
@pytest.mark.parametrize(("validation", "bad"), [(4, False), (1, False), (2, True), (3, True)])
def test_boxes_of_another_format_are_read_as_they_fit_those_of_a_small_split_as_the_others(
    tmp_path: Path, layout: str, numbers: Callable, validation: int, bad: bool
) -> None:
    scenes = make_scenes(validation=validation)
    if bad:  # a box that fits no format
        scenes[12].boxes[0] = [500, 500, 540, 560]

    fixed = fix(WRITERS[layout](tmp_path / "set", scenes, to_numbers=numbers), tmp_path / "clean")

    reread = {"reread": sum(len(scene.boxes) for scene in scenes)}
    assert fixed.changes == reread | ({"outside": 1} if bad else {})
    assert fixed.boxes["validation"] == 3 * validation - bad
    found = checks(tmp_path / "clean")
    assert not found & {"wrong-format", "mixed-formats"} if bad else not found
    assert_boxes_lie_on_their_colours(open_boxes(tmp_path / "clean"))


@pytest.mark.parametrize(("layout", "numbers"), OTHER_NUMBERS.items())
@pytest.mark.parametrize("other", ["train", "validation"])
def test_splits_of_two_formats_are_told_and_no_copy_is_made(
    tmp_path: Path, layout: str, numbers: Callable, other: str
) -> None:
    scenes = make_scenes(validation=3)
    usual = [scene for scene in scenes if scene.split != other]
    mixed = [scene for scene in scenes if scene.split == other]
    source = WRITERS[layout](tmp_path / "set", usual)
    WRITERS[layout](tmp_path / "other", mixed, to_numbers=numbers)
    for path in (tmp_path / "other").rglob("*"):
        target = source / path.relative_to(tmp_path / "other")
        if path.is_file() and path.name != "data.yaml":
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    if layout == "yolo":
        (source / "data.yaml").write_text(
            "names: [blue, green, red]\ntrain: images/train\nval: images/val\ntest: images/test\n"
        )

    (finding,) = (
        finding for finding in check_boxes(open_boxes(source)).findings if finding.check == "mixed-formats"
    )
    assert finding.severity == "error"
    assert f"the {other} split" in finding.message
    assert "no clean copy" in finding.remedy
    with pytest.raises(DataError, match=f"the {other} split have another format"):
        fix(source, tmp_path / "clean")
    assert not (tmp_path / "clean").exists()


@pytest.mark.parametrize(
    ("layout", "own", "other"),
    [
        ("coco", as_xywh, as_corners),
        ("voc", as_corners, as_xywh),
        ("yolo", cxcywh_shares, in_shares(as_corners)),
    ],
)
@pytest.mark.parametrize(
    ("drawn", "whose"),
    [(False, r"boxes of the train split .* 36 boxes"), (True, r"some boxes .* 60 boxes")],
)
def test_boxes_of_two_formats_in_one_split_are_refused(
    tmp_path: Path, layout: str, own: Callable, other: Callable, drawn: bool, whose: str
) -> None:
    def numbers(box: list[float], size: tuple[int, int]) -> list[float]:
        return (other if box[2] % 4 == 0 else own)(box, size)

    scenes = make_scenes()
    for scene in scenes if drawn else ():
        scene.split = "train"
    source = WRITERS[layout](tmp_path / "set", scenes, to_numbers=numbers)

    errors = check_boxes(open_boxes(source)).of("error")
    assert {error.check for error in errors} == {"mixed-formats"}
    assert all(error.items for error in errors)
    with pytest.raises(DataError, match=f"{whose} cannot lie"):
        fix(source, tmp_path / "clean")
    assert not (tmp_path / "clean").exists()


@pytest.mark.parametrize("layout", list(WRITERS))
def test_an_image_that_loses_every_box_is_left_out(tmp_path: Path, layout: str) -> None:
    scenes = make_scenes()
    scenes[1].boxes, scenes[1].labels = [[200, 30, 220, 44], [20, 30, 20, 44]], [0, 1]
    scenes[2].boxes, scenes[2].labels = [], []  # nothing was ever on it
    scenes[3].boxes, scenes[3].labels = [[float("nan"), 3, 9, 9]], [0]

    fixed = fix(WRITERS[layout](tmp_path / "set", scenes), tmp_path / "clean")

    assert fixed.changes == {"emptied": 2, "empty": 1, "outside": 1, "malformed": 1}
    assert [Path(name).name for name in fixed.items["emptied"]] == ["train-1.png", "train-3.png"]
    assert any("2 images left out: no box of it can be used" in line for line in fixed.summary())
    names = {Path(name).name for name in open_boxes(tmp_path / "clean").train.names}
    assert names == {scene.name for scene in scenes if scene.split == "train"} - {
        "train-1.png",
        "train-3.png",
    }
