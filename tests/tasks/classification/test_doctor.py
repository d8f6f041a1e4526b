"""Every check of the doctor finds what it is for, and nothing on a healthy data set."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from making.image_folders import encode
from vitrail.data.dataset import ImageDataset, ImageSplit
from vitrail.data.findings import Finding, Verdict
from vitrail.tasks.classification.doctor import CHECKS, check
from vitrail.tasks.classification.opening import open_dataset

GENERATOR = np.random.default_rng(0)


def random_pixels(count: int, height: int = 9, width: int = 9) -> np.ndarray:
    return GENERATOR.integers(0, 256, size=(count, height, width, 3), dtype=np.uint8)


def split_of(prefix: str, images: np.ndarray | list, labels: list[int] | None = None) -> ImageSplit:
    """Name images by their numbers; without labels, two classes take turns."""
    labels = [index % 2 for index in range(len(images))] if labels is None else labels
    return ImageSplit(images, np.array(labels, dtype=np.int64), [f"{prefix}{i}" for i in range(len(images))])


def dataset_of(
    train: ImageSplit,
    test: ImageSplit,
    class_names: tuple[str, ...] = ("cat", "dog"),
) -> ImageDataset:
    nothing = train.take([])
    return ImageDataset(
        source="pets", format="test", class_names=class_names, train=train, validation=nothing, test=test
    )


def healthy() -> ImageDataset:
    return dataset_of(split_of("train", random_pixels(20)), split_of("test", random_pixels(6)))


def found(verdict: Verdict) -> dict[str, Finding]:
    return {finding.check: finding for finding in verdict.findings}


def test_nothing_is_found_in_a_healthy_data_set() -> None:
    verdict = check(healthy())
    assert verdict.findings == ()
    assert verdict.usable
    assert verdict.exclude == frozenset()
    assert verdict.counts["images"] == {"train": 20, "validation": 0, "test": 6}
    assert verdict.counts["per_class"]["dog"] == {"train": 10, "validation": 0, "test": 3}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of twelve distinct PNG images each, beside six each for the test."""
    for split, count in (("train", 12), ("test", 6)):
        for name in ("cat", "dog"):
            place = tmp_path / "pets" / split / name
            place.mkdir(parents=True)
            for index in range(count):
                Image.fromarray(random_pixels(1, 20, 20)[0]).save(place / f"{index}.png")
    return tmp_path / "pets"


def png_of_size(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_images_of_a_format_without_a_reader_are_counted_with_the_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.data.images.readable_formats", lambda: ("JPEG", "PNG"))
    (folder / "train" / "cat" / "phone.heic").write_bytes(b"\0\0\0\x1cftypheic" + bytes(20))
    (folder / "train" / "cat" / "bad.png").write_bytes(b"")
    verdict = check(open_dataset(folder))
    lacking = found(verdict)["no-reader"]
    assert lacking.items == ("train/cat/phone.heic",)
    assert lacking.message.startswith("1 image of 38 ")
    assert "pip install pillow-heif" in lacking.remedy
    assert found(verdict)["unreadable"].count == 1
    assert verdict.exclude == {"train/cat/phone.heic", "train/cat/bad.png"}


def test_every_kind_of_unreadable_file_is_found_and_left_out(folder: Path) -> None:
    cat = folder / "train" / "cat"
    (cat / "0.png").write_bytes(b"")
    (cat / "text.jpg").write_text("this is no picture")
    (cat / "1.png").write_bytes((cat / "1.png").read_bytes()[:400])
    (cat / "bomb.png").write_bytes(png_of_size(60_000, 60_000))
    (cat / "gone.png").symlink_to(folder / "nowhere.png")
    dataset = open_dataset(folder)
    verdict = check(dataset)
    expected = {f"train/cat/{name}" for name in ("0.png", "text.jpg", "1.png", "bomb.png", "gone.png")}
    assert verdict.exclude == expected
    finding = found(verdict)["unreadable"]
    assert (finding.severity, finding.count) == ("warning", 5)
    text = "\n".join(finding.items)
    for reason in ("0 bytes", "not an image", "damaged", "pixels", "does not exist"):
        assert reason in text
    assert verdict.usable
    cleaned = check(dataset.without(verdict.exclude))
    assert "unreadable" not in found(cleaned)
    assert sum(cleaned.counts["images"].values()) == sum(verdict.counts["images"].values()) - 5


def test_a_wrong_suffix_is_found_and_the_image_used_but_mostly_broken_files_are_an_error(
    folder: Path,
) -> None:
    path = folder / "train" / "dog" / "3.png"
    path.rename(path.with_suffix(".jpg"))
    verdict = check(open_dataset(folder))
    assert found(verdict)["wrong-suffix"].items == ("train/dog/3.jpg is PNG",)
    assert verdict.exclude == frozenset()

    for path in folder.glob("train/*/*.png"):
        path.write_bytes(b"")
    verdict = check(open_dataset(folder))
    assert not verdict.usable
    assert found(verdict)["unreadable"].severity == "error"
    assert "one-class" in found(verdict)


def test_converted_images_are_counted_by_kind(folder: Path) -> None:
    dog = folder / "train" / "dog"
    pixels = Image.fromarray(random_pixels(1, 20, 20)[0])
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels.convert("L").save(dog / "grey.png")
    pixels.convert("RGBA").save(dog / "alpha.png")
    pixels.convert("P").save(dog / "palette.png")
    pixels.convert("CMYK").save(dog / "cmyk.jpg")
    pixels.save(dog / "rotated.jpg", exif=exif)
    Image.fromarray(GENERATOR.integers(0, 65536, size=(20, 20), dtype=np.uint16)).save(
        dog / "sixteen-bit.png"
    )
    pixels.save(dog / "animated.gif", save_all=True, append_images=[pixels.rotate(90)])
    findings = found(check(open_dataset(folder)))
    for kind in ("grey", "alpha", "palette", "cmyk", "rotated", "sixteen-bit", "animated"):
        assert findings[kind].severity == "info"
        assert any(f"/{kind}." in item for item in findings[kind].items), kind


def test_images_shared_by_train_and_test_are_found_whatever_their_encoding(folder: Path) -> None:
    image = Image.open(folder / "train" / "cat" / "2.png")
    image.save(folder / "test" / "cat" / "copy.bmp")
    image.close()
    finding = found(check(open_dataset(folder)))["test-in-train"]
    assert len(finding.items) == 1
    assert "test/cat/copy.bmp" in finding.items[0]
    assert "cat/2.png" in finding.items[0]


def test_one_picture_under_two_labels_is_found() -> None:
    pixels = random_pixels(20)
    pixels[7] = pixels[4]
    findings = found(check(dataset_of(split_of("train", pixels), split_of("test", random_pixels(4)))))
    assert findings["conflicting-labels"].items == ("train4 (cat) = train7 (dog)",)
    assert findings["repeated-in-train"].items == ("train4 = train7",)
    assert findings["repeated-in-train"].severity == "info"
    assert "test-in-train" not in findings


def test_of_many_copies_a_few_are_named() -> None:
    pixels = random_pixels(1).repeat(7, axis=0)
    findings = found(check(dataset_of(split_of("train", pixels), split_of("test", random_pixels(4)))))
    assert findings["repeated-in-train"].items == ("train0 = train1 = train2 = train3 and 3 more",)
    assert findings["conflicting-labels"].items[0].endswith("train3 (dog) and 3 more")


@pytest.mark.parametrize(("count", "is_told"), [(20, False), (21, True)])
def test_as_many_classes_as_images_are_an_error(count: int, is_told: bool) -> None:
    train = split_of("train", random_pixels(count), [*range(count)])
    verdict = check(dataset_of(train, train.take([]), tuple(f"class {label}" for label in range(count))))
    assert ("one-of-each-class" in found(verdict)) == is_told
    assert verdict.usable != is_told


def test_a_validation_image_seen_in_training_is_not_reported_as_a_test_image() -> None:
    dataset = healthy()
    findings = found(check(replace(dataset, validation=dataset.train.take([3]))))
    assert "validation-in-train" in findings
    assert "test-in-train" not in findings


def test_a_class_of_the_test_that_training_lacks_is_an_error() -> None:
    test = split_of("test", random_pixels(3), [0, 2, 2])
    verdict = check(dataset_of(healthy().train, test, ("cat", "dog", "Dog")))
    findings = found(verdict)
    assert findings["class-not-in-train"].items == ("Dog",)
    assert findings["class-not-in-test"].items == ("dog",)
    assert "misspelt" in findings["class-not-in-test"].remedy
    assert findings["similar-class-names"].items == ("'dog' = 'Dog'",)
    assert not verdict.usable
    assert verdict.findings[0].severity == "error"


@pytest.mark.parametrize(
    ("names", "near"),
    [
        (("kangaroo", "Kangeroo"), ("'kangaroo' and 'Kangeroo'",)),  # another letter
        (("rocket", "rockets", "socket"), ("'rocket' and 'rockets'", "'rocket' and 'socket'")),
        (("stable", "tables", "house 1", "house 2", "cat", "bat"), ()),
    ],
)
def test_long_class_names_that_differ_in_one_letter_are_noted(
    names: tuple[str, ...], near: tuple[str, ...]
) -> None:
    train = split_of("train", random_pixels(2 * len(names)), [*range(len(names))] * 2)
    findings = found(check(dataset_of(train, train, names)))
    assert ("near-class-names" in findings) == bool(near)
    for pair in near:
        assert pair in findings["near-class-names"].message


def test_a_class_that_a_drawn_test_lacks_is_not_called_misspelt() -> None:
    test = split_of("test", random_pixels(3), [0, 0, 0])
    drawn = replace(dataset_of(healthy().train, test), test_origin="0.2 of the source, seed 0")
    assert found(check(drawn))["class-not-in-test"].remedy.endswith("give more images")


def test_a_published_division_may_test_a_class_that_training_lacks() -> None:
    test = split_of("test", random_pixels(3), [0, 2, 1])
    dataset = dataset_of(healthy().train, test, ("cat", "dog", "emu"))
    verdict = check(replace(dataset, is_published=True))
    assert found(verdict)["class-not-in-train"].severity == "warning"
    assert found(verdict)["class-not-in-train"].items == ("emu",)
    assert verdict.usable


def test_no_image_of_a_published_test_is_left_out() -> None:
    train = split_of("train", [b"nothing", *map(encode, random_pixels(19))])
    test = split_of("test", [*map(encode, random_pixels(5)), b"nothing"])
    verdict = check(replace(dataset_of(train, test), is_published=True))
    assert found(verdict)["unreadable-test"].items == ("test5",)
    assert verdict.exclude == {"train0"}
    assert not verdict.usable
    own = check(dataset_of(train, test))
    assert own.exclude == {"train0", "test5"}
    assert own.usable


def test_a_class_without_any_image_and_a_missing_test_are_found() -> None:
    dataset = healthy()
    verdict = check(dataset_of(dataset.train, dataset.test, ("cat", "dog", "emu")))
    assert found(verdict)["empty-class"].items == ("emu",)
    assert "no-test" in found(check(dataset_of(dataset.train, dataset.test.take([]))))


def test_small_classes_and_imbalance_are_reported_with_numbers() -> None:
    labels = [0] * 40 + [1] * 4
    verdict = check(dataset_of(split_of("train", random_pixels(44), labels), healthy().test))
    assert found(verdict)["small-classes"].items == ("dog (4)",)
    assert found(verdict)["imbalance"].items == ("cat (40)", "dog (4)")
    assert "10 times" in found(verdict)["imbalance"].message


def test_tiny_huge_and_mixed_sizes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.data.image_checks.LARGE_PIXELS", 300)
    images = [*random_pixels(18), random_pixels(1, 5, 40)[0], random_pixels(1, 30, 40)[0]]
    findings = found(check(dataset_of(split_of("train", images), healthy().test)))
    assert findings["small-images"].items == ("train18",)
    assert findings["large-images"].items == ("train19",)
    assert findings["mixed-sizes"].count == 3


def test_a_check_passes_on_findings_tells_its_progress_and_changes_nothing(folder: Path) -> None:
    Image.new("RGB", (9, 9)).save(folder / "train" / "stray.png")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    told: list[tuple[int, int]] = []
    verdict = check(open_dataset(folder), progress=lambda done, total: told.append((done, total)))
    assert found(verdict)["stray-images"].items == ("train/stray.png",)
    assert told[-1] == (36, 36)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_verdict_is_json_and_fits_a_terminal() -> None:
    train = split_of("a-rather-long-folder-name/with-long-file-names-", random_pixels(20), [0] * 19 + [1])
    verdict = check(dataset_of(train, healthy().test, ("cat", "dog", "Dog")))
    tree = json.loads(json.dumps(verdict.to_json()))
    assert tree["usable"] is True
    assert {finding["check"] for finding in tree["findings"]} == set(found(verdict))
    lines = verdict.summary()
    assert max(len(line) for line in lines) <= 80
    assert lines[0].startswith("pets: 26 images, 3 classes (train 20, validation 0, test 6)")
    assert lines[-1].startswith("OK")


def test_many_affected_items_are_counted_and_shortened() -> None:
    finding = Finding("warning", "x", "m", "r", tuple(str(index) for index in range(5000)))
    verdict = Verdict("s", (finding,), {"images": {"train": 1}, "classes": 1})
    assert finding.to_json()["count"] == 5000
    assert len(finding.to_json()["items"]) == 1000
    assert any("0; 1; 2 and 4997 more" in line for line in verdict.summary())


def test_every_check_explains_itself() -> None:
    assert all(judge.__doc__ for judge in CHECKS)
