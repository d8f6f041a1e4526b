"""A package is read as it was written, and not at all where it is not what was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from making.small_exports import small_vit, write_package
from vitrail.core.errors import CheckpointError
from vitrail.core.sealed import read_sealed, sealed
from vitrail.engines.export.package import Package, is_package

PORT = {"name": "images", "dtype": "float32", "axes": ["batch", 3, "height", "width"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_package(tmp_path, small_vit(), "openvino").folder


def test_a_package_is_read_as_it_was_written(folder):
    package = Package.read(folder)

    assert package.inputs[0].axes == ("batch", 3, 24, 16)
    assert (package.folder / "model.xml").is_file()
    assert set(package.files) == {"model.xml", "model.bin"}
    assert package.comparison.top1_agreement == 1.0
    assert is_package(folder)
    assert "folder" not in json.loads((folder / "package.json").read_text())


@pytest.mark.parametrize("name", ["model.xml", "model.bin"])
def test_a_changed_file_is_found_out(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")

    with pytest.raises(CheckpointError, match=f"{name} is damaged"):
        Package.read(folder)


def test_a_missing_file_is_named(folder):
    (folder / "model.bin").unlink()

    with pytest.raises(CheckpointError, match=r"model\.bin cannot be read"):
        Package.read(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "sounds"}, "task"),
        ({"surplus": 1}, "surplus"),
        ({"package_version": 2}, "version 2"),
        ({"files": {"model.xml": "0" * 64}}, r"expected model\.xml, model\.bin|names the files model\.xml"),
        ({"files": {"model.xml": "0", "model.bin": "0", "../secret": "0"}}, "secret"),
        ({"class_names": ["a", "b"]}, "there are 2 class_names for logits of"),
        ({"outputs": []}, "inputs and outputs are not images, sizes, logits, boxes, or images, logits"),
        ({"inputs": [PORT | {"axes": ["batch", 3, 10**6, 10**6]}]}, "empty or too long"),
        ({"inputs": [PORT | {"axes": ["batch", 3, -1, 8]}]}, "empty or too long"),
        ({"inputs": [PORT | {"multiple_of": 10**9}]}, "multiple_of must be less than or equal to 2048"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(folder, changes, message):
    path = folder / "package.json"
    path.write_text(sealed(read_sealed(path) | changes))

    with pytest.raises(CheckpointError, match=message):
        Package.read(folder)


def test_a_folder_without_a_package_is_refused(tmp_path):
    assert not is_package(tmp_path)
    with pytest.raises(CheckpointError, match="vitrail export"):
        Package.read(tmp_path)


def test_a_change_of_the_description_is_noticed(folder):
    path = folder / "package.json"
    path.write_text(path.read_text().replace('"blue"', '"green"', 1))

    with pytest.raises(CheckpointError, match=r"package.json was damaged or changed.*remove its line"):
        Package.read(folder)
