from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from making.box_scenes import boxes_in_memory, make_scenes, write_coco
from vitrail.tasks.data_page import Drawn, SampleAt, choose_samples, draw_sample, write_data_page
from vitrail.tasks.detection.dataset import BoxDataset, BoxSplit
from vitrail.tasks.detection.doctor import check_boxes
from vitrail.tasks.detection.doctor_page import draw_boxes, view_boxes
from vitrail.tasks.detection.opening import open_boxes

EVIL = "<script>alert(1)</script>"


class Tags(HTMLParser):
    """Count the elements and collect the boxes that are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.boxes: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag == "i" and "data-k" in dict(attrs):
            self.boxes.append(dict(attrs))


def tags_of(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    return tags


def style_of(box: dict[str, str]) -> dict[str, float]:
    return {key: float(value) for key, value in re.findall(r"(\w+):(-?[\d.]+)%", box["style"])}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scenes = make_scenes()
    scenes[1].boxes[2] = [70, 20, 70, 31]
    scenes[2].boxes[0] = [40, 30, 20, 12]
    return write_coco(tmp_path_factory.mktemp("page") / "set", scenes)


@pytest.fixture(scope="module")
def page(faulty: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path, dataset = tmp_path_factory.mktemp("written") / "page.html", open_boxes(faulty)
    write_data_page(path, dataset, check_boxes(dataset), view_boxes(dataset))
    return path.read_text()


def test_the_page_shows_findings_classes_plots_and_samples(page: str) -> None:
    text, tags = page, tags_of(page)
    assert text.index("zero-area") < text.index("inverted") < text.index("Boxes of each class")
    assert tags.counts["article"] == 2
    assert tags.counts["svg"] == 4
    assert tags.counts["img"] == 20 + 2  # every image as a sample, and one for each finding
    assert sum("fault" in box["class"] for box in tags.boxes) == 2
    assert "nothing found" not in text


def test_the_page_loads_nothing(page: str) -> None:
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert "url(http" not in page
    assert "@import" not in page


def test_names_of_users_are_text_on_the_page(faulty: Path, tmp_path: Path) -> None:
    dataset = open_boxes(faulty)
    train = dataset.train
    names = [f"{EVIL} {index}" for index in range(len(train))]
    renamed = BoxSplit(train.images, train.boxes, train.labels, names, sizes=train.sizes)
    evil = replace(dataset, source=EVIL, class_names=(EVIL, "b", "c"), train=renamed)

    view = view_boxes(evil)._replace(plots=())
    write_data_page(tmp_path / "page.html", evil, check_boxes(evil), view)

    text = (tmp_path / "page.html").read_text()
    assert EVIL not in text
    assert tags_of(text).counts["script"] == 1


def memory_set(boxes: list, size: tuple[int, int] = (20, 40)) -> BoxDataset:
    image = np.full((1, *size, 3), 90, dtype=np.uint8)
    split = BoxSplit(image, [np.array(boxes)], [np.zeros(len(boxes))], ["a"], sizes=np.array([size]))
    return boxes_in_memory(split)


def draw_first(dataset: BoxDataset, marked: tuple[int, ...] = ()) -> Drawn:
    return draw_boxes(dataset.train, 0, dataset.class_names, marked)


def test_boxes_are_placed_in_shares_of_the_picture() -> None:
    drawn = draw_first(memory_set([[10, 5, 30, 15]]))

    (box,) = tags_of(drawn.content).boxes
    assert style_of(box) == {"left": 25, "top": 25, "width": 50, "height": 50}
    assert "20 x 10 px" in box["title"]


def test_a_marked_box_beyond_the_edge_widens_the_view() -> None:
    dataset = memory_set([[10, 5, 30, 15], [30, 5, 44, 15], [300, 5, 310, 15]])

    plain, wide, far = (draw_first(dataset, marked) for marked in ((), (1,), (2,)))

    assert plain.aspect == "40/20"
    assert wide.aspect == "44.8/20"
    assert far.aspect == "52/20"  # no more than the margin
    assert all(0 <= style_of(box)["left"] <= 100 for box in tags_of(far.content).boxes)


def test_boxes_with_numbers_that_are_none_are_not_drawn() -> None:
    drawn = draw_first(memory_set([[10, 5, 30, 15], [np.nan, 5, 44, 15]]), (1,))

    assert len(tags_of(drawn.content).boxes) == 1
    assert "nan" not in drawn.content


def test_an_image_that_cannot_be_read_is_left_out() -> None:
    split = BoxSplit([b"no picture"], [np.zeros((0, 4))], [np.zeros(0)], ["a"])
    dataset = boxes_in_memory(split)

    assert draw_sample(dataset, view_boxes(dataset), SampleAt("train", 0)) == ""


def test_samples_show_every_class_and_every_split() -> None:
    labels = [np.array([0])] * 40 + [np.array([7])] + [np.array([0, index]) for index in range(1, 7)]
    boxes = [np.tile([1, 1, 5, 5], (len(part), 1)) for part in labels]
    images = np.zeros((47, 9, 9), dtype=np.uint8)
    split = BoxSplit(images, boxes, labels, [str(index) for index in range(47)])
    dataset = BoxDataset(
        source="s",
        format="memory",
        class_names=tuple("abcdefgh"),
        class_ids=tuple(range(8)),
        train=split,
        validation=split.take([]),
        test=BoxSplit(images[:3], boxes[:3], labels[:3], ["t0", "t1", "t2"]),
    )

    chosen = choose_samples(dataset, view_boxes(dataset), {"t1"}, 12)

    assert len(chosen) == 12
    assert set().union(*chosen.values()) == set(range(8))
    assert ("test", 1) not in chosen
    assert any(image.split == "test" for image in chosen)


def test_a_set_without_boxes_has_a_page(tmp_path: Path) -> None:
    dataset = memory_set([])

    write_data_page(tmp_path / "page.html", dataset, check_boxes(dataset), view_boxes(dataset))

    text = (tmp_path / "page.html").read_text()
    assert "no-training-boxes" in text
    assert "NOT usable" in text
    assert "svg" not in tags_of(text).counts
