"""Pascal VOC's XML in the layouts that tools write, read without trusting it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from making.box_scenes import (
    FOLDERS,
    assert_holds,
    of_split,
    varied_scenes,
    varied_splits,
    voc_text,
    write_flat_voc,
    write_images,
    write_text,
    write_voc,
)
from vitrail.core.errors import DataError
from vitrail.tasks.detection.formats import BOX_FORMATS
from vitrail.tasks.detection.formats.voc import parse_voc

VOC = BOX_FORMATS["Pascal VOC"]


def test_lists_divide_the_images(tmp_path: Path) -> None:
    scenes = varied_splits()
    write_voc(tmp_path / "devkit" / "VOC2007", scenes)
    for source in (tmp_path, tmp_path / "devkit" / "VOC2007"):
        assert VOC.recognises(source)
        raw = VOC.read(source)
        assert raw.class_ids == (0, 1, 2)
        assert raw.facts.declared_class_ids == ()
        assert_holds(raw, scenes)
        for name, split in raw.splits.items():
            assert [Path(image).name for image in split.images] == [
                scene.name for scene in of_split(scenes, name)
            ]
        assert raw.findings == ()


def test_trainval_alone_is_for_training(tmp_path: Path) -> None:
    write_voc(tmp_path, varied_splits())
    lists = tmp_path / "ImageSets" / "Main"
    lists.joinpath("trainval.txt").write_text(
        lists.joinpath("train.txt").read_text() + lists.joinpath("val.txt").read_text()
    )
    assert {name: len(split) for name, split in VOC.read(tmp_path).splits.items()} == {
        "train": 8,
        "validation": 5,
        "test": 4,
    }
    lists.joinpath("train.txt").unlink()
    raw = VOC.read(tmp_path)
    assert {name: len(split) for name, split in raw.splits.items()} == {"train": 13, "test": 4}


def test_lists_of_single_classes_divide_the_images_too(tmp_path: Path) -> None:
    scenes = varied_splits()
    write_voc(tmp_path, scenes)
    for file in (tmp_path / "ImageSets" / "Main").glob("*.txt"):
        names = file.read_text().split()
        for number, kind in enumerate(("red", "blue")):
            file.with_name(f"{kind}_{file.name}").write_text(
                "".join(f"{name} -1\n" for name in names[number:])
            )
        file.unlink()

    assert_holds(VOC.read(tmp_path), scenes)


def test_folders_without_lists_and_flat_ones_are_undivided(tmp_path: Path) -> None:
    scenes = varied_scenes(6, seed=0)
    write_voc(tmp_path / "a", scenes)
    (tmp_path / "a" / "ImageSets" / "Main" / "train.txt").unlink()
    write_flat_voc(tmp_path / "b", scenes)
    for name, folder in (("c", "annotations"), ("d", "annots")):  # the latter is no usual name
        write_images(tmp_path / name / "images", scenes)
        for scene in scenes:
            write_text(tmp_path / name / folder / f"{scene.stem}.xml", voc_text(scene))
    for name in "abcd":
        assert VOC.recognises(tmp_path / name)
        raw = VOC.read(tmp_path / name)
        assert_holds(raw, scenes)
        assert raw.facts.unlisted_images == ()


def test_folders_of_splits_are_read(tmp_path: Path) -> None:
    scenes = varied_splits()
    for scene in scenes:
        write_flat_voc(tmp_path / FOLDERS[scene.split], [scene])
    assert_holds(VOC.read(tmp_path), scenes)


@pytest.mark.parametrize(
    ("annotations", "images"),
    [
        ("{}_annots", "{}_images"),
        ("annots/{}", "images/{}"),
        ("{}/ann", "{}/img"),
        ("{}_zip/{}/annots", "{}_zip/{}/pictures"),
        ("annots", "pictures/{}"),
    ],
)
def test_images_are_found_by_their_names_whatever_the_folders_are_called(
    tmp_path: Path, annotations: str, images: str
) -> None:
    scenes = varied_splits()
    for scene in scenes:
        folder = FOLDERS[scene.split]
        write_images(tmp_path / images.format(folder, folder), [scene])
        file = tmp_path / annotations.format(folder, folder) / f"{scene.stem}.xml"
        write_text(file, voc_text(scene))
        write_text(tmp_path / "a mask" / f"{scene.stem}.bmp", "no image")  # nearly of the same name

    assert VOC.recognises(tmp_path)
    assert_holds(VOC.read(tmp_path), scenes)


def test_images_and_annotations_without_each_other_are_told(tmp_path: Path) -> None:
    scenes = varied_scenes(6, seed=0)
    write_flat_voc(tmp_path, scenes)
    (tmp_path / "scene0.png").unlink()
    (tmp_path / "scene1.xml").unlink()
    raw = VOC.read(tmp_path)
    assert raw.facts.annotations_without_image == ("scene0.xml",)
    assert raw.facts.unlisted_images == ("scene1.png",)
    assert len(raw.splits["train"]) == 4


def test_listed_images_without_annotations_are_left_out(tmp_path: Path) -> None:
    write_voc(tmp_path, varied_splits())
    (tmp_path / "Annotations" / "test-0.xml").unlink()
    with (tmp_path / "ImageSets" / "Main" / "test.txt").open("a") as file:
        file.write("nowhere\n")
    raw = VOC.read(tmp_path)
    assert len(raw.splits["test"]) == 3
    assert [(finding.check, finding.items) for finding in raw.findings] == [
        ("listed-without-annotations", ("test-0",))
    ]
    assert raw.facts.annotations_without_image == ("test list: nowhere",)


def test_sizes_are_read_from_headers_where_they_are_not_given(tmp_path: Path) -> None:
    (scene,) = varied_scenes(4, seed=0)[3:]
    write_images(tmp_path, [scene])
    (tmp_path / f"{scene.stem}.xml").write_text(voc_text(scene, with_size=False))
    raw = VOC.read(tmp_path)
    assert raw.splits["train"].sizes.tolist() == [list(scene.size)]
    assert raw.facts.claimed_sizes == {}


def test_difficult_boxes_are_noted(tmp_path: Path) -> None:
    scenes = varied_scenes(4, seed=0)
    write_flat_voc(tmp_path, scenes)
    file = tmp_path / "scene3.xml"
    text = file.read_text()
    second = text.index("<difficult>0", text.index("<difficult>0") + 1)
    file.write_text(text[:second] + "<difficult>1" + text[second + len("<difficult>0") :])
    raw = VOC.read(tmp_path)
    assert [(finding.check, finding.items) for finding in raw.findings] == [("difficult", ("scene3.png",))]
    assert raw.splits["train"].num_boxes == 6


def test_unreadable_files_leave_their_images_out(tmp_path: Path) -> None:
    write_flat_voc(tmp_path, varied_scenes(6, seed=0))
    broken = {
        "scene0": b"<annotation><object>",
        "scene1": b"\xff\xfe\x00bytes",
        "scene2": b"<html><annotation/></html>",
        "scene3": b"",
        "scene4": b'<!DOCTYPE a [<!ENTITY x "boom">]><annotation><filename>&x;</filename></annotation>',
    }
    for stem, content in broken.items():
        (tmp_path / f"{stem}.xml").write_bytes(content)
    raw = VOC.read(tmp_path)
    assert [Path(name).stem for name in raw.splits["train"].names] == ["scene5"]
    (finding,) = raw.findings
    assert finding.check == "unreadable-annotations"
    assert finding.count == 5
    assert "scene1.xml: it is not well-formed XML" in finding.items[1]
    assert "declares the entity 'x'" in finding.items[4]
    assert raw.facts.unlisted_images == ()


@pytest.mark.parametrize(
    "entry",
    [
        "<object><name>red</name></object>",
        "<object><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></object>",
        "<object><name>red</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax></bndbox></object>",
        "<object><name>red</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>b</ymax></bndbox>"
        "</object>",
        "<object><name>red</name><bndbox><xmin>1</xmin><ymin>nan</ymin><xmax>2</xmax><ymax>2</ymax></bndbox>"
        "</object>",
    ],
)
def test_malformed_objects_are_left_out_and_reported(tmp_path: Path, entry: str) -> None:
    scenes = varied_scenes(4, seed=0)
    write_flat_voc(tmp_path, scenes)
    file = tmp_path / "scene2.xml"
    file.write_text(file.read_text().replace("</annotation>", f"{entry}</annotation>"))
    raw = VOC.read(tmp_path)
    (finding,) = raw.findings
    assert finding.check == "malformed-boxes"
    assert finding.items[0].startswith("scene2.xml: object 2 (")
    assert "without a name" in finding.items[0] or "red: " in finding.items[0]
    assert raw.splits["train"].num_boxes == 6


def test_an_image_of_another_name_is_found_by_what_the_file_says(tmp_path: Path) -> None:
    scenes = varied_scenes(3, seed=0)
    write_flat_voc(tmp_path, scenes)
    (tmp_path / "scene0.xml").rename(tmp_path / "zero.xml")
    (tmp_path / "scene1.xml").write_text(voc_text(scenes[2]))
    raw = VOC.read(tmp_path)
    assert sorted(raw.splits["train"].names) == ["scene0.png", "scene1.png", "scene2.png"]
    assert [(finding.check, finding.items) for finding in raw.findings] == [
        ("other-file-names", ("scene1.xml (scene2.png)",))
    ]


def test_entities_are_not_expanded() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY b "ha">' + "".join(
        f'<!ENTITY b{index} "{f"&b{index - 1 if index else str()};" * 10}">' for index in range(9)
    )
    with pytest.raises(ValueError, match="entity 'b'"):
        parse_voc(f"{bomb}]><annotation>&b8;</annotation>".encode())
    outside = b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]><annotation>&x;</annotation>'
    with pytest.raises(ValueError, match="entity 'x'"):
        parse_voc(outside)
    wide = outside.decode().encode("utf-16")
    with pytest.raises(ValueError, match="entity 'x'"):
        parse_voc(wide)


def test_text_in_other_encodings_is_read() -> None:
    text = "<?xml version='1.0' encoding='{}'?><annotation><filename>\u00e9.png</filename></annotation>"
    for encoding in ("utf-8", "utf-16", "latin-1"):
        assert parse_voc(text.format(encoding).encode(encoding)).findtext("filename") == "\u00e9.png"
    with pytest.raises(ValueError, match="unknown encoding"):
        parse_voc(text.format("klingon").encode())
    with pytest.raises(ValueError, match="more than"):
        parse_voc(b" " * (1 << 24) + b"<annotation/>")


def test_folders_that_cannot_be_used_are_explained(tmp_path: Path) -> None:
    scenes = varied_scenes(3, seed=0)
    write_flat_voc(tmp_path / "images-gone", scenes)
    for file in (tmp_path / "images-gone").glob("*.png"):
        file.unlink()
    with pytest.raises(DataError, match=r"none has an image, such as scene0\.xml"):
        VOC.read(tmp_path / "images-gone")
    write_flat_voc(tmp_path / "broken", scenes)
    for file in (tmp_path / "broken").glob("*.xml"):
        file.write_text("<annotation>")
    with pytest.raises(DataError, match="none of the annotations"):
        VOC.read(tmp_path / "broken")
    for year in (2007, 2012):
        write_voc(tmp_path / "devkit" / f"VOC{year}", scenes)
    with pytest.raises(DataError, match="holds 2 data sets: VOC2007, VOC2012"):
        VOC.read(tmp_path / "devkit")
    (tmp_path / "devkit" / "VOC2007" / "ImageSets" / "Main" / "train.txt").write_bytes(b"\xff\xfa")
    with pytest.raises(DataError, match="is not UTF-8 text"):
        VOC.read(tmp_path / "devkit" / "VOC2007")


def test_other_xml_is_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text("<html/>")
    assert not VOC.recognises(tmp_path)
    assert not VOC.recognises(tmp_path / "missing")


def test_blood_cells(shared_data: Path) -> None:
    folder = shared_data / "bccd"
    if not folder.is_dir():
        pytest.skip("no folder bccd in ../shared/data")
    raw = VOC.read(folder)
    assert {name: len(split) for name, split in raw.splits.items()} == {
        "train": 205,
        "validation": 87,
        "test": 72,
    }
    assert raw.class_names == ("Platelets", "RBC", "WBC")
    counts = np.bincount(np.concatenate([part for split in raw.splits.values() for part in split.labels]))
    assert np.asarray(counts).tolist() == [361, 4155, 372]  # counted by grep in the XML files
    assert raw.findings == ()
    assert all(tuple(size) == (480, 640) for split in raw.splits.values() for size in split.sizes)
