from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from PIL import Image

from vitrail.cli import main
from vitrail.tasks.data_page import samples_in

NAMES = frozenset({"x", "b.png", "c (1).png", "a: b = c.png", "p.en:7"})


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("x", [("x", "")]),
        ("x: box 3 (cat) 1, 2, 3, 4", [("x", "box 3 (cat) 1, 2, 3, 4")]),
        ("x: box 3 (cat) 1, 2, 3, 4 = box 1 (dog)", [("x", "box 3 (cat) 1, 2, 3, 4 = box 1 (dog)")]),
        ("x = b.png", [("x", ""), ("b.png", "")]),
        ("x = other.png", [("x", "other.png")]),
        (
            "x (cat) = b.png (dog) = c (1).png (owl)",
            [("x", "(cat)"), ("b.png", "(dog)"), ("c (1).png", "(owl)")],
        ),
        ("a: b = c.png: box 12 (a: b) 1, 2, 3, 4", [("a: b = c.png", "box 12 (a: b) 1, 2, 3, 4")]),
        ("x = a: b = c.png", [("x", ""), ("a: b = c.png", "")]),
        ("b.png is PNG", [("b.png", "is PNG")]),
        ("p.en:7 (en, 1200 words)", [("p.en:7", "(en, 1200 words)")]),
        ("cat (17)", []),
    ],
)
def test_items_tell_their_samples(item: str, expected: list[tuple[str, str]]) -> None:
    assert list(samples_in(item, NAMES)) == expected


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of images by class: two classes, with a copy under another label and a file that is broken."""
    folder, random = tmp_path_factory.mktemp("animals"), np.random.default_rng(0)
    for label, count in (("cat", 30), ("d>g", 11)):
        (folder / label).mkdir()
        for index in range(count):
            pixels = random.integers(0, 255, size=(9, 12 + index, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{index}.png")
    shutil.copy(folder / "cat" / "3.png", folder / "d>g" / "copy & co.png")
    (folder / "cat" / "broken.png").write_bytes(b"no image")
    assert main(["check", str(folder), "-o", str(folder / "page.html")]) == 0
    return (folder / "page.html").read_text()


def test_the_page_of_images_has_their_sizes_and_samples_class_by_class(page: str) -> None:
    samples = page[page.index('id="samples"') :]
    keys = re.findall(r'<figure class="shot" data-k="(\d)">', samples)
    assert keys == sorted(keys)
    assert 10 < keys.count("1") < 14  # of 24, as many of each
    assert page.count("<svg") == 2


def test_copies_stand_side_by_side(page: str) -> None:
    groups = re.findall(r'<div class="alike">(.*?)</div>', page)
    assert groups
    for group in groups:
        assert sorted(re.findall(r"<b>(.*?)</b>", group)) == ["cat/3.png", "d&gt;g/copy &amp; co.png"]


def test_what_cannot_be_read_is_named_and_not_drawn(page: str) -> None:
    assert page.count("cat/broken.png") == 1
