"""Each fault that is planted into a clean set is found under its code, and nothing in the clean one."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from making.box_scenes import (
    WRITERS,
    Scene,
    as_centre,
    as_corners,
    as_xywh,
    boxes_in_memory,
    cxcywh_shares,
    in_shares,
    make_scenes,
    write_coco,
    write_yolo,
)
from vitrail.core.errors import DataError
from vitrail.data.findings import Finding, Verdict
from vitrail.tasks.detection.dataset import BoxSplit
from vitrail.tasks.detection.doctor import CHECKS, check_boxes
from vitrail.tasks.detection.fix import write_clean
from vitrail.tasks.detection.opening import open_boxes

ALL = tuple(WRITERS)


def found(verdict: Verdict) -> dict[str, Finding]:
    return {finding.check: finding for finding in verdict.findings}


Plant = Callable[[list[Scene]], None]


def move_box(change: Callable[[float, float, float, float], list[float]]) -> Plant:
    """Change the corners of one box: left, top, right and bottom."""

    def plant(scenes: list[Scene]) -> None:
        scenes[1].boxes[2] = change(*scenes[1].boxes[2])

    return plant


def draw_again(label: int, shift: float) -> Plant:
    def plant(scenes: list[Scene]) -> None:
        scenes[1].boxes.append([number + shift for number in scenes[1].boxes[2]])
        scenes[1].labels.append(label)

    return plant


def heap(scenes: list[Scene]) -> None:
    for number in range(130):
        left, top = 7 * (number % 13), 5 * (number // 13)
        scenes[1].boxes.append([left, top, left + 6, top + 4])
        scenes[1].labels.append(number % 3)


def change_image(number: int = 1, **fields: Any) -> Plant:
    def plant(scenes: list[Scene]) -> None:
        for name, value in fields.items():
            setattr(scenes[number], name, value)

    return plant


def leak(into: str, out_of: str) -> Plant:
    def plant(scenes: list[Scene]) -> None:
        source = next(scene for scene in scenes if scene.split == out_of)
        target = [scene for scene in scenes if scene.split == into][1]
        target.pixels, target.boxes, target.labels = source.pixels, source.boxes, source.labels

    return plant


def repeat_image(scenes: list[Scene], *, boxes: bool = True) -> None:
    scenes[2].pixels = scenes[1].pixels
    if boxes:
        scenes[2].boxes = scenes[1].boxes


def drop_class(splits: tuple[str, ...], keep: int = 0) -> Plant:
    def plant(scenes: list[Scene]) -> None:
        members = [scene for scene in scenes if scene.split in splits]
        for scene in members[: len(members) - keep]:
            scene.boxes, scene.labels = scene.boxes[:2], scene.labels[:2]

    return plant


def annotate_at_twice_the_size(scenes: list[Scene]) -> None:
    scenes[1].claimed = tuple(2 * side for side in scenes[1].pixels.shape[:2])
    scenes[1].boxes = [[2 * number for number in box] for box in scenes[1].boxes]


def turn(scenes: list[Scene]) -> None:
    """Store the image turned, to be turned back by Exif, with boxes for the pixels as stored."""
    height, width = scenes[1].pixels.shape[:2]
    scenes[1].orientation, scenes[1].claimed = 6, (width, height)
    scenes[1].boxes = [
        [top, width - right, bottom, width - left] for left, top, right, bottom in scenes[1].boxes
    ]


PLANTED = [
    (move_box(lambda a, b, c, d: [c, b, a, d]), "inverted", "warning", ALL),
    (move_box(lambda a, b, c, d: [a, b, a, d]), "zero-area", "warning", ALL),
    (move_box(lambda a, b, c, d: [a + 300, b + 300, c + 300, d + 300]), "outside", "warning", ALL),
    (move_box(lambda a, b, c, d: [a, b, c + 20, d]), "beyond-edge", "warning", ALL),
    (move_box(lambda a, b, c, d: [a, b, c, b + 1]), "one-pixel", "warning", ALL),
    (draw_again(2, 0.25), "repeated-boxes", "warning", ALL),
    (draw_again(0, 0), "two-classes", "warning", ALL),
    (heap, "many-boxes", "warning", ALL),
    (change_image(boxes=[], labels=[]), "images-without-boxes", "info", ALL),
    (change_image(stored=b"this is no picture"), "unreadable", "warning", ALL),
    (leak("test", "train"), "test-in-train", "warning", ALL),
    (leak("validation", "train"), "validation-in-train", "warning", ALL),
    (leak("test", "validation"), "test-in-validation", "warning", ALL),
    (partial(repeat_image, boxes=False), "conflicting-boxes", "warning", ALL),
    (repeat_image, "repeated-in-train", "info", ALL),
    (drop_class(("train",)), "class-not-in-train", "warning", ALL),
    (drop_class(("test",)), "class-not-in-test", "warning", ALL),
    (drop_class(("train", "validation", "test")), "class-without-boxes", "warning", ("coco", "yolo")),
    (drop_class(("train",), keep=3), "small-classes", "warning", ALL),
    (drop_class(("train",), keep=1), "imbalance", "warning", ALL),
    (change_image(claimed=(40, 83)), "size-mismatch", "warning", ("coco", "voc")),
    (annotate_at_twice_the_size, "scaled-boxes", "warning", ("coco", "voc")),
    (turn, "exif-rotation", "warning", ("coco", "voc")),
    (change_image(orientation=3), "exif-unclear", "warning", ALL),
]


@pytest.mark.parametrize("layout", ALL)
def test_nothing_is_found_in_a_clean_set(tmp_path: Path, layout: str) -> None:
    verdict = check_boxes(open_boxes(WRITERS[layout](tmp_path / "set", make_scenes())))

    assert verdict.findings == ()
    assert verdict.usable
    assert verdict.exclude == frozenset()
    assert verdict.counts["images"] == {"train": 12, "validation": 4, "test": 4}
    assert verdict.counts["boxes"] == {"train": 36, "validation": 12, "test": 12}
    assert verdict.counts["per_class"]["red"] == {"train": 12, "validation": 4, "test": 4}


@pytest.mark.parametrize(
    ("plant", "code", "severity", "layout"),
    [
        pytest.param(plant, code, severity, layout, id=f"{code}-{layout}")
        for plant, code, severity, layouts in PLANTED
        for layout in layouts
    ],
)
def test_each_planted_fault_is_found(
    tmp_path: Path, plant: Plant, code: str, severity: str, layout: str
) -> None:
    scenes = make_scenes()
    plant(scenes)

    verdict = check_boxes(open_boxes(WRITERS[layout](tmp_path / "set", scenes)))

    assert code in found(verdict)
    assert found(verdict)[code].severity == severity
    companions = {
        "imbalance": {"small-classes"},
        "conflicting-boxes": {"repeated-in-train"},
        "class-not-in-train": {"small-classes"},
        "one-pixel": set(),
    }.get(code, set())
    others = {finding.check for finding in verdict.findings if finding.severity != "info"} - {code}
    assert others <= companions, "a fault must not be told under names that it does not have"


def as_percent(box: list[float], size: tuple[int, int]) -> list[float]:
    return [100 * number for number in in_shares(as_centre)(box, size)]


def y_before_x(convert: Callable) -> Callable:
    return lambda box, size: [convert(box, size)[number] for number in (1, 0, 3, 2)]


def of_no_format(box: list[float], size: tuple[int, int]) -> list[float]:
    return [1.7 * number for number in in_shares(as_centre)(box, size)]


WRONG_FORMATS = [
    ("coco", as_corners, "(xyxy) in pixels"),
    ("coco", as_centre, "(cxcywh) in pixels"),
    ("coco", in_shares(as_xywh), "(xywh) in shares"),
    ("voc", as_xywh, "(xywh) in pixels"),
    ("voc", in_shares(as_corners), "(xyxy) in shares"),
    ("yolo", as_centre, "(cxcywh) in pixels"),
    ("yolo", as_corners, "(xyxy) in pixels"),
    ("yolo", in_shares(as_corners), "(xyxy) in shares"),
    ("coco", y_before_x(as_corners), "(yxyx) in pixels"),
    ("coco", y_before_x(as_xywh), "(yxhw) in pixels"),
    ("yolo", as_percent, "(cxcywh) in percent"),
]


@pytest.mark.parametrize(("layout", "numbers", "likely"), WRONG_FORMATS)
def test_numbers_of_another_format_are_found_and_named(
    tmp_path: Path, layout: str, numbers: Callable, likely: str
) -> None:
    scenes = make_scenes()
    if numbers is as_percent:  # as small images, percent may be pixels
        for scene in scenes:
            scene.pixels = scene.pixels.repeat(5, axis=0).repeat(5, axis=1)
            scene.boxes = [[5 * number for number in box] for box in scene.boxes]
    verdict = check_boxes(open_boxes(WRITERS[layout](tmp_path / "set", scenes, to_numbers=numbers)))

    finding = found(verdict)["wrong-format"]
    assert finding.severity == "error"
    stored = numbers(scenes[0].boxes[0], scenes[0].size)
    assert finding.items[0].endswith("box 0 (blue) " + ", ".join(f"{number:.6g}" for number in stored))
    assert likely in finding.message.split("; as ")[1]
    assert not {"outside", "beyond-edge", "inverted"} & set(found(verdict)), "told once, by its cause"


def test_boxes_that_fit_in_no_format_are_an_error_and_are_not_copied(tmp_path: Path) -> None:
    source = write_yolo(tmp_path / "set", make_scenes(), to_numbers=of_no_format)

    errors = check_boxes(open_boxes(source)).of("error")

    assert [error.check for error in errors] == ["unknown-format"]
    with pytest.raises(DataError, match=r"most boxes do not lie in their images, in any known format"):
        write_clean(open_boxes(source), tmp_path / "clean")


def test_corners_in_shares_may_have_y_first_which_nothing_tells(tmp_path: Path) -> None:
    source = write_coco(tmp_path / "set", make_scenes(), to_numbers=in_shares(as_corners))

    (error,) = check_boxes(open_boxes(source)).of("error")

    assert error.check == "unclear-format"
    assert "(xyxy) in shares or as top, left, bottom, right (yxyx) in shares, they can" in error.message
    with pytest.raises(DataError, match="the numbers do not tell which it is"):
        write_clean(open_boxes(source), tmp_path / "clean")


def test_label_files_in_pixels_among_others_in_shares_are_another_format(tmp_path: Path) -> None:
    def half(box: list[float], size: tuple[int, int]) -> list[float]:
        shares = cxcywh_shares(box, size)
        return shares if box[0] % 2 else [side * size[1 - i % 2] for i, side in enumerate(shares)]

    source = write_yolo(tmp_path / "set", make_scenes(), to_numbers=half)

    error, *_ = check_boxes(open_boxes(source)).of("error")

    assert error.check == "mixed-formats"
    assert error.message.startswith("some boxes of the train split have another format")
    assert "(cxcywh) in pixels, they can" in error.message


def test_turned_pictures_are_not_taken_for_boxes_with_y_first(tmp_path: Path) -> None:
    scenes = make_scenes()
    for scene in scenes:  # wider than high, with boxes that do not lie inside when turned
        scene.pixels = scene.pixels[: len(scene.pixels) // 2]
        scene.boxes = [[left, top / 2, right, bottom / 2] for left, top, right, bottom in scene.boxes]
    source = write_coco(tmp_path / "set", scenes)
    for path in (path for path in source.glob("*/*") if path.suffix != ".json"):
        with Image.open(path) as image:
            turned = image.transpose(Image.Transpose.ROTATE_90)
        turned.save(path)

    checks = found(check_boxes(open_boxes(source)))

    assert "wrong-format" not in checks
    assert "unknown-format" in checks


def test_boxes_with_y_first_among_others_are_refused(tmp_path: Path) -> None:
    scenes = make_scenes()
    for scene in scenes[::3]:
        scene.boxes = [[top, left, bottom, right] for left, top, right, bottom in scene.boxes]
    source = write_coco(tmp_path / "set", scenes)

    finding = found(check_boxes(open_boxes(source)))["mixed-formats"]

    assert finding.severity == "error"
    assert "(yxhw) in pixels" in finding.message
    with pytest.raises(DataError, match="another format than the rest"):
        write_clean(open_boxes(source), tmp_path / "clean")


def test_one_split_of_another_format_is_named(tmp_path: Path) -> None:
    scenes = make_scenes()
    for scene in scenes:
        if scene.split == "validation":  # stored as corners, in a file of width and height
            scene.boxes = [[a, b, a + c, b + d] for a, b, c, d in scene.boxes]

    verdict = check_boxes(open_boxes(write_coco(tmp_path / "set", scenes)))

    told = [finding for finding in verdict.findings if finding.check == "mixed-formats"]
    assert len(told) == 1
    assert "the validation split" in told[0].message


@pytest.mark.parametrize(
    ("write", "code", "severity"),
    [
        (lambda root, scenes: write_yolo(root, scenes, used_ids=(1, 2, 3)), "class-ids-off-by-one", "error"),
        (lambda root, scenes: write_coco(root, scenes, used_ids=(0, 1, 2)), "class-ids-off-by-one", "error"),
        (lambda root, scenes: write_coco(root, scenes, used_ids=(1, 2, 9)), "unknown-class-ids", "warning"),
        (lambda root, scenes: write_yolo(root, scenes, used_ids=(0, 1, 9)), "unknown-class-ids", "warning"),
        (lambda root, scenes: write_coco(root, scenes, ids=(1, 5, 90)), "class-ids-with-gaps", "info"),
        (lambda root, scenes: write_coco(root, scenes, ids=(1, 5, 10**12)), "class-ids-with-gaps", "info"),
        (lambda root, scenes: write_coco(root, scenes, ids=(0, 1, 2)), "class-ids-start", "info"),
        (
            lambda root, scenes: write_yolo(
                root, scenes, names="{1: blue, 2: green, 3: red}", used_ids=(1, 2, 3)
            ),
            "class-ids-start",
            "info",
        ),
    ],
)
def test_class_ids_that_do_not_fit_are_found(
    tmp_path: Path, write: Callable, code: str, severity: str
) -> None:
    verdict = check_boxes(open_boxes(write(tmp_path / "set", make_scenes())))

    assert found(verdict)[code].severity == severity
    if severity == "info":
        assert not verdict.of("warning")


@pytest.mark.parametrize(
    ("layout", "missing", "code", "severity"),
    [
        *((layout, "absent", "annotations-without-image", "warning") for layout in ALL),
        ("yolo", "without_labels", "images-without-annotation", "info"),
    ],
)
def test_images_and_annotations_without_each_other_are_named(
    tmp_path: Path, layout: str, missing: str, code: str, severity: str
) -> None:
    source = WRITERS[layout](tmp_path / "set", make_scenes(), **{missing: ("train-3.png",)})

    finding = found(check_boxes(open_boxes(source)))[code]

    assert any("train-3" in item for item in finding.items)
    assert finding.severity == severity


@pytest.mark.parametrize("layout", ["coco", "yolo"])
def test_splits_that_the_source_does_not_name_are_found(tmp_path: Path, layout: str) -> None:
    source = WRITERS[layout](tmp_path / "set", make_scenes(train=30, validation=0, test=0))

    finding = found(check_boxes(open_boxes(source)))["drawn-splits"]

    assert finding.severity == "info"
    assert [item.split(":")[0] for item in finding.items] == ["validation", "test"]


def test_a_split_to_train_on_without_boxes_is_an_error(tmp_path: Path) -> None:
    scenes = make_scenes()
    for scene in scenes[:12]:
        scene.boxes, scene.labels = [], []

    verdict = check_boxes(open_boxes(write_coco(tmp_path / "set", scenes)))

    assert found(verdict)["no-training-boxes"].severity == "error"
    assert not verdict.usable


@pytest.mark.parametrize("layout", ALL)
@pytest.mark.parametrize(
    "boxes",
    [
        [[float("nan"), 3, 9, 9], [float("inf"), 5, 2, 2]],
        [[20, 30, 20, 44]],
        [[200, 30, 220, 44], [float("nan"), 3, 9, 9]],
        [[30, 20, 20, 44]],
    ],
)
@pytest.mark.parametrize("number", [1, 13, 17])  # of training, validation and test
def test_an_image_without_a_usable_box_of_several_is_left_out(
    tmp_path: Path, layout: str, boxes: list[list[float]], number: int
) -> None:
    scenes = make_scenes()
    scenes[number].boxes, scenes[number].labels = boxes, [0, 1][: len(boxes)]
    dataset = open_boxes(WRITERS[layout](tmp_path / "set", scenes))

    verdict = check_boxes(dataset)

    lost = found(verdict)["no-usable-box"]
    (item,) = lost.items
    name, reasons = item.split(": ")
    assert name.endswith(scenes[number].name)
    assert sum(int(reason.split()[0]) for reason in reasons.split(", ")) == len(boxes)
    assert set(reasons.translate(str.maketrans("", "", "12 ")).split(",")) <= {
        "malformed",
        "empty",
        "outside",
        "inverted",
    }
    assert {Path(name).name for name in verdict.exclude} == {scenes[number].name}
    assert "images-without-boxes" not in found(verdict)


def test_crowds_are_told_and_nothing_is_learned_from_them_alone() -> None:
    boxes, labels = [np.array([[1, 1, 9, 9]], dtype=np.float32)] * 3, [np.zeros(1)] * 3
    images = np.random.default_rng(0).integers(0, 255, size=(3, 20, 30, 3), dtype=np.uint8)
    sizes = np.array([[20, 30]] * 3)

    def verdict_of(*are_crowds: bool) -> Verdict:
        crowds = [np.array([is_crowd]) for is_crowd in are_crowds]
        split = BoxSplit(images, boxes, labels, list("abc"), sizes=sizes, is_crowd=crowds)
        return check_boxes(boxes_in_memory(split.take([0, 1]), test=split.take([2])))

    some, crowds_to_test, crowds = (verdict_of(*flags) for flags in ((1, 0, 0), (0, 0, 1), (1, 1, 0)))

    assert (found(some)["crowds"].count, some.exclude, some.usable) == (1, {"a"}, True)
    assert not crowds_to_test.exclude
    assert "no-test-boxes" in found(crowds_to_test)
    assert "no-training-boxes" in found(crowds)
    assert not crowds.usable


def test_numbers_that_are_none_are_found_in_memory() -> None:
    boxes = np.array([[1, 1, 9, 9], [1, np.nan, 9, 9], [1, 1, np.inf, 9]], dtype=np.float32)
    noise = np.random.default_rng(0).integers(0, 255, size=(2, 20, 30, 3), dtype=np.uint8)
    split = BoxSplit(noise[:1], [boxes], [np.zeros(3)], ["a"], sizes=np.array([[20, 30]]))
    test = BoxSplit(noise[1:], [boxes[:1]], [np.zeros(1)], ["b"], sizes=np.array([[20, 30]]))

    verdict = check_boxes(boxes_in_memory(split, test=test))

    assert found(verdict)["not-finite"].count == 2


def test_groups_are_never_told_as_repetitions() -> None:
    boxes = np.array([[1, 1, 9, 9], [1, 1, 9, 9]], dtype=np.float32)
    image = np.zeros((1, 20, 30, 3), dtype=np.uint8)
    crowd = [np.array([False, True])]
    split = BoxSplit(image, [boxes], [np.zeros(2)], ["a"], sizes=np.array([[20, 30]]), is_crowd=crowd)

    verdict = check_boxes(boxes_in_memory(split))

    assert "repeated-boxes" not in found(verdict)


def test_a_set_of_crowded_images_is_told_without_alarm() -> None:
    grid = [[x, y, x + 2, y + 2] for x in range(0, 45, 4) for y in range(0, 45, 4)]
    images = np.random.default_rng(0).integers(0, 255, size=(4, 50, 50, 3), dtype=np.uint8)
    boxes, labels = [np.array(grid)] * 4, [np.zeros(len(grid))] * 4
    split = BoxSplit(images, boxes, labels, list("abcd"), sizes=np.full((4, 2), 50))

    verdict = check_boxes(
        boxes_in_memory(split.take([0, 1]), validation=split.take([2]), test=split.take([3]))
    )

    assert found(verdict)["crowded-images"].severity == "info"
    assert "many-boxes" not in found(verdict)


def test_a_verdict_names_boxes_counts_and_leaves_the_disk_alone(tmp_path: Path) -> None:
    scenes = make_scenes()
    heap(scenes)
    scenes[2].boxes[2] = [70, 20, 70, 31]
    source = write_coco(tmp_path / "set", scenes)
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    steps: list[tuple[int, int]] = []

    verdict = check_boxes(open_boxes(source), progress=lambda done, total: steps.append((done, total)))

    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before
    assert steps[-1] == (20, 20)
    (item,) = found(verdict)["zero-area"].items
    assert item.endswith("train-2.png: box 2 (red) 70, 20, 0, 11")
    assert json.loads(json.dumps(verdict.to_json()))["counts"]["boxes"]["train"] == 166
    assert "190 boxes of 3 classes" in " ".join(verdict.summary())
    assert max(map(len, verdict.summary())) <= 80


def test_every_check_explains_itself() -> None:
    assert all(judge.__doc__ for judge in CHECKS)


def test_bccd_has_the_faults_that_it_is_known_for(shared_data: Path) -> None:
    if not (shared_data / "bccd").is_dir():
        pytest.skip("no BCCD beside this checkout")

    verdict = check_boxes(open_boxes(shared_data / "bccd" / "BCCD"))

    assert found(verdict)["zero-area"].count == 2
    assert found(verdict)["repeated-boxes"].count == 7  # copies, shifted by two pixels both ways
    assert {finding.check for finding in verdict.of("warning")} == {
        "zero-area",
        "repeated-boxes",
        "imbalance",
    }
    assert verdict.usable


def test_coco128_is_usable_and_its_rare_classes_are_found(shared_data: Path) -> None:
    if not (shared_data / "coco128").is_dir():
        pytest.skip("no COCO128 beside this checkout")

    verdict = check_boxes(open_boxes(shared_data / "coco128"))

    assert verdict.usable
    assert verdict.counts["classes"] == 80
    assert found(verdict)["images-without-boxes"].count == 2
    assert {"small-classes", "imbalance", "class-without-boxes"} <= set(found(verdict))
    assert not {"wrong-format", "outside", "inverted", "zero-area", "class-ids-off-by-one"} & set(
        found(verdict)
    )
