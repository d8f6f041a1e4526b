"""Captioned images in every layout: recognised, opened, divided; what is wrong is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from making.caption_folders import (
    write_coco,
    write_csv,
    write_flickr,
    write_json_lines,
    write_karpathy,
    write_parquet,
    write_squares,
)
from vitrail.core.errors import DataError
from vitrail.data.images import read_image
from vitrail.tasks.captioning.dataset import CaptionDataset, CaptionSplit
from vitrail.tasks.captioning.opening import open_captions
from vitrail.tasks.registry import recognise

LAYOUTS: dict[str, tuple[Callable[[Path], Path], str, tuple[int, int, int], int]] = {
    "Kaggle's table": (write_csv, "table of captions", (9, 1, 2), 3),
    "Flickr8k": (write_flickr, "Flickr8k", (6, 2, 3), 3),
    "COCO": (write_coco, "COCO captions", (5, 1, 3), 3),
    "Karpathy": (write_karpathy, "Karpathy's captions", (5, 2, 2), 1),
    "JSON lines": (write_json_lines, "table of captions", (4, 1, 2), 1),
    "parquet": (write_parquet, "table of captions", (11, 1, 4), 3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_recognised_and_opened(layout: str, tmp_path: Path) -> None:
    write, name, sizes, captions = LAYOUTS[layout]
    folder = write(tmp_path / "data")

    assert recognise(folder) == "captioning"
    dataset = open_captions(folder)

    assert dataset.format == name
    assert tuple(len(split) for split in dataset.splits.values()) == sizes
    assert {len(texts) for split in dataset.splits.values() for texts in split.captions} == {captions}
    assert not {"captions-without-image", "empty-captions"} & {each.check for each in dataset.findings}
    for split in dataset.splits.values():
        for image, texts in zip(split.images, split.captions, strict=True):
            colour = next(word for word in ("red", "green", "blue") if word in texts[0])
            side = "left" if "left" in texts[0] else "right"
            red, green, blue = read_image(image).getpixel((6 if side == "left" else 17, 10))
            assert max((red, "red"), (green, "green"), (blue, "blue"))[1] == colour


def test_a_single_file_is_opened_too(tmp_path: Path) -> None:
    write_flickr(tmp_path)
    token = tmp_path / "Flickr8k_text" / "Flickr8k.token.txt"
    assert recognise(token) == "captioning"
    assert len(open_captions(token).train) == 6
    write_coco(tmp_path / "coco")
    annotations = tmp_path / "coco" / "annotations"
    assert len(open_captions(annotations / "captions_val2017.json").test) == 3
    boxes = {"images": [], "annotations": [{"image_id": 1, "bbox": [0, 0, 1, 1]}], "categories": []}
    (annotations / "instances_val2017.json").write_text(json.dumps(boxes))
    assert recognise(tmp_path / "coco") == "detection"


def test_a_folder_of_the_hub_is_opened(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra data")
    captions = write_squares(tmp_path / "images", 5)
    rows = {"image": [str(tmp_path / "images" / name) for name in captions], "caption": [*captions.values()]}
    saved = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    saved.save_to_disk(tmp_path / "saved")
    assert recognise(tmp_path / "saved") == "captioning"
    dataset = open_captions(tmp_path / "saved")
    assert sum(map(len, dataset.splits.values())) == 5
    assert read_image(dataset.train.images[0]).size == (24, 24)


def test_what_has_no_partner_is_noted_and_left_out(tmp_path: Path) -> None:
    write_squares(tmp_path, 4)
    rows = "000.png,a dog\n001.png,  \n001.png,!?\n002.png,\n002.png,a cat\nlost.png,a bird\n"
    (tmp_path / "captions.csv").write_text("image,caption\n" + rows)
    found = {finding.check: finding.items for finding in open_captions(tmp_path).findings}
    assert found["captions-without-image"] == ("lost.png",)
    assert found["empty-captions"] == ("001.png#0", "001.png#1", "002.png#0")
    assert set(found["images-without-captions"]) == {"001.png", "003.png"}


MARKS = ["train"] * 4 + ["val", "tset", "tset"]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"captions.csv": "image,caption\nlost.png,a dog\n"},
            "names 1 image and none of them is there, such as lost.png",
        ),
        (
            {"captions.csv": "image,caption\n000.png,\n"},
            "has no image with a caption, 1 caption without a word",
        ),
        (
            {
                "captions.csv": "image,caption,split\n"
                + "".join(f"{number:03d}.png,a dog,{mark}\n" for number, mark in enumerate(MARKS))
            },
            r"row 5 of .*captions.csv belongs to a split named 'tset'. Expected one of dev, eval, restval,",
        ),
        (
            {"captions.csv": "image,caption,split\n000.png,a dog,train\n001.png,a cat,\n"},
            r"row 1 of .*captions.csv names no split",
        ),
        (
            {
                "test.csv": "image,caption\n000.png,a dog\n",
                "train.csv": "image,caption,split\n001.png,a dog,train\n002.png,a cat,test\n",
            },
            r"train.csv has rows of the split test, and another table is",
        ),
    ],
)
def test_tables_that_cannot_be_used_are_refused(tmp_path: Path, tables: dict[str, str], message: str) -> None:
    write_squares(tmp_path, 7)
    for name, content in tables.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        open_captions(tmp_path)


def test_damaged_files_are_refused_with_their_names(tmp_path: Path) -> None:
    coco = write_coco(tmp_path / "coco") / "annotations" / "captions_train2017.json"
    coco.write_text(coco.read_text()[:-20])
    karpathy = write_karpathy(tmp_path / "karpathy") / "dataset_squares.json"
    karpathy.write_text(karpathy.read_text().replace('"split": "test"', '"split": "tset"', 1))
    token = tmp_path / "x.token.txt"
    token.write_text("1.jpg#0\ta dog\nno tab here\n")
    for source, message in (
        (tmp_path / "coco", r"captions_train2017.json cannot be read"),
        (tmp_path / "karpathy", r"007.png in .*squares.json belongs to a split named 'tset'"),
        (token, r"line 2 of .*x.token.txt is 'no tab here'"),
    ):
        with pytest.raises(DataError, match=message):
            open_captions(source)


@pytest.mark.parametrize("kept", [0, 1, 60, 150, -1])
def test_a_cut_file_of_karpathys_is_refused_wherever_it_ends(tmp_path: Path, kept: int) -> None:
    content = (write_karpathy(tmp_path) / "dataset_squares.json").read_text()
    (tmp_path / "dataset_squares.json").unlink()
    file = tmp_path / "dataset_flickr8k.json"
    file.write_text(content[:kept])
    for source in (tmp_path, file):
        assert recognise(source) == "captioning"
        with pytest.raises(DataError, match=r"dataset_flickr8k.json cannot be read: \w"):
            open_captions(source)


@pytest.mark.parametrize("folder", [".", "images", "train"])
def test_a_table_called_captions_with_unknown_columns_is_named(tmp_path: Path, folder: str) -> None:
    write_squares(tmp_path / folder, 3)
    table = tmp_path / "captions_all.csv"
    table.write_text("picture_url,words\n000.png,a dog\n")
    for source in (tmp_path, table):
        assert recognise(source) == "captioning"
        with pytest.raises(
            DataError, match=r"captions_all.csv has the columns 'picture_url', 'words'. Expected .*file_name"
        ):
            open_captions(source)


def test_other_data_stay_what_they_are(tmp_path: Path, image_folder: Path, divided_folder: Path) -> None:
    labels, columns = tmp_path / "labels", "picture_url,words\n000.png,a dog\n"
    write_squares(labels, 2)
    (labels / "train.csv").write_text("image,label\n000.png,a\n001.png,b\n")
    for folder in (image_folder, divided_folder, labels):
        (folder / "captions.csv").write_text(columns)
        assert recognise(folder) == "classification"
    boxes = json.dumps(
        {"images": [], "annotations": [{"image_id": 1, "bbox": [0, 0, 1, 1]}], "categories": []}
    )
    for name, other in (("instances_train.json", "captions.csv"), ("dataset_coco.json", "notes.csv")):
        folder = tmp_path / name.removesuffix(".json")
        folder.mkdir()
        (folder / name).write_text(boxes)
        (folder / other).write_text(columns)
        assert recognise(folder) == "detection"
    (tmp_path / "table.csv").write_text("image,label,text\na.png,cat,a cat\n")
    assert recognise(tmp_path / "table.csv") == "classification"
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "a.png", "text": "x", "objects": {}}\n')
    assert recognise(tmp_path / "metadata.jsonl") != "captioning"


def test_what_is_not_there_or_no_captions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no path"):
        open_captions(tmp_path / "nowhere")
    write_squares(tmp_path, 1)
    with pytest.raises(DataError, match=r"holds no captioned images of a known format.*COCO JSON"):
        open_captions(tmp_path)
    assert recognise(tmp_path) == "classification"


def test_a_split_column_divides_and_columns_may_be_numbered(tmp_path: Path) -> None:
    write_squares(tmp_path, 5)
    rows = "000.png,a dog,dogs,train\n001.png,a cat,cats,val\n002.png,a bird,birds,test\n"
    (tmp_path / "all.csv").write_text("file_name,caption_1,caption_2,split\n" + rows)
    dataset = open_captions(tmp_path)
    assert [split.captions for split in dataset.splits.values()] == [
        (("a dog", "dogs"),),
        (("a cat", "cats"),),
        (("a bird", "birds"),),
    ]
    rows = "".join(f"{number:03d}.png,a dog,{'AB'[number % 2]}\n" for number in range(5))
    (tmp_path / "all.csv").write_text("image,caption,set\n" + rows)  # a set of other things
    assert open_captions(tmp_path).test_origin.startswith("0.2 of the source")


def test_names_of_the_hub_tell_captions() -> None:
    assert recognise("hf:jxie/flickr8k") == "captioning"
    assert recognise("hf:someone/coco-captions") == "captioning"


def test_fingerprints_change_with_captions_and_images_alone_do_not() -> None:
    one = CaptionSplit([b"x", b"y"], [["a"], ["b", "c"]], ["1", "2"])
    other = CaptionSplit([b"x", b"y"], [["a"], ["b", "d"]], ["1", "2"])
    assert one.fingerprint != other.fingerprint
    assert one.image_fingerprint == other.image_fingerprint
    assert one.num_captions == 3
    taken = one.take([1])
    assert (taken.names, taken.captions) == (("2",), (("b", "c"),))
    nothing = CaptionSplit([], [], [])
    dataset = CaptionDataset(source="x", format="y", train=one, validation=nothing, test=nothing)
    assert dataset.without({"1"}).train.names == ("2",)


def test_flickr8k_as_it_is_shared(shared_data: Path) -> None:
    folder = shared_data / "flickr8k"
    if not folder.is_dir():
        pytest.skip("no folder flickr8k in the shared data")
    assert recognise(folder) == "captioning"
