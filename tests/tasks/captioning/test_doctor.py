"""What the doctor finds in captioned images."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from making.caption_folders import write_csv, write_squares
from vitrail.cli import main
from vitrail.data.findings import Verdict
from vitrail.tasks.captioning.doctor import check_captions
from vitrail.tasks.captioning.opening import open_captions


def check(folder: Path) -> Verdict:
    return check_captions(open_captions(folder))


def found(verdict: Verdict) -> dict[str, tuple[str, ...]]:
    return {finding.check: finding.items for finding in verdict.findings}


def test_sound_data_is_usable_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = check(write_csv(tmp_path))
    assert main(["check", str(tmp_path)]) == 0
    assert "36 captions" in " ".join(capsys.readouterr().out.split())
    assert verdict.usable
    assert verdict.counts["images"] == {"train": 9, "validation": 1, "test": 2}
    assert verdict.counts["captions"] == {"train": 27, "validation": 3, "test": 6}
    assert verdict.counts["words"]["longest"] == 7
    assert set(found(verdict)) == {"few-images", "drawn-splits"}
    told = " ".join(verdict.summary())
    assert "12 images, 36 captions (train 9, validation 1, test 2)" in told


def test_a_source_without_a_test_is_told_why_validation_is_drawn(tmp_path: Path) -> None:
    write_squares(tmp_path, 8)
    rows = [f"{number:03d}.png,a dog,{'train' if number < 6 else 'val'}" for number in range(8)]
    (tmp_path / "captions.csv").write_text("image,caption,split\n" + "\n".join(rows) + "\n")
    items = found(check(tmp_path))
    assert items["drawn-splits"] == (
        "validation: 1 of the training images, seed 0, since its own is the test",
    )


def test_faults_are_told_each_by_its_name(tmp_path: Path) -> None:
    folder = write_csv(tmp_path)
    shutil.copy(folder / "Images" / "000.png", folder / "Images" / "copy.png")
    (folder / "Images" / "broken.png").write_bytes(b"no image")
    write_squares(folder / "Images", 1, first=50)
    with (folder / "captions.txt").open("a") as file:
        file.write("copy.png,<b>a</b> copy\ncopy.png,a copy\ncopy.png,A copy.\n")
        file.write("broken.png,broken\nlost.png,lost\n001.png,...\n")
        file.write(f"002.png,{'word ' * 61}\n")
    verdict = check(folder)
    items = found(verdict)
    assert verdict.usable
    assert verdict.exclude == {"Images/broken.png"}
    assert items["captions-without-image"] == ("lost.png",)
    assert items["images-without-captions"] == ("Images/050.png",)
    assert items["empty-captions"] == ("Images/001.png#3",)
    assert items["markup"] == ("Images/copy.png",)
    assert items["repeated-captions"] == ("Images/copy.png",)
    assert items["long-captions"] == ("Images/002.png (61 words)",)
    assert {"unreadable", "uneven-captions"} <= set(items)
    copies = [name for check in items if check.endswith("-in-train") for name in items[check]]
    copies += [name for check in items if check.endswith("-in-validation") for name in items[check]]
    assert any("copy.png" in name and "000.png" in name for name in copies)


def test_what_training_refuses_is_an_error(tmp_path: Path) -> None:
    write_squares(tmp_path, 2)
    (tmp_path / "captions.csv").write_text("image,caption\n000.png,a dog\n")
    verdict = check(tmp_path)
    assert not verdict.usable
    assert {finding.check for finding in verdict.of("error")} == {"one-image", "no-test"}
    assert "1 image, 1 caption (train 1, validation 0, test 0)" in " ".join(verdict.summary())
    (tmp_path / "captions.csv").rename(tmp_path / "test.csv")
    verdict = check(tmp_path)
    assert verdict.usable  # to be evaluated on
    assert "no-train" in found(verdict)


def test_one_of_a_kind_is_told_in_the_singular(tmp_path: Path) -> None:
    folder = write_csv(tmp_path)
    with (folder / "captions.txt").open("a") as file:
        file.write(f"001.png,<b>a</b> square\n002.png,{'word ' * 61}\n")
    told = {finding.check: finding.message for finding in check(folder).findings}
    assert told["long-captions"] == "1 caption of more than 60 words"
    assert told["markup"].startswith("1 image whose captions hold tags")


def test_one_caption_for_many_images_is_told(tmp_path: Path) -> None:
    write_squares(tmp_path, 25)
    rows = [f"{number:03d}.png,an image of something" for number in range(25)]
    (tmp_path / "captions.csv").write_text("image,caption\n" + "\n".join(rows) + "\n")
    assert found(check(tmp_path))["common-captions"] == ("'an image of something' (25)",)
