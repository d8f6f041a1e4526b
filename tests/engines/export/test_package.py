"""A package is read as it was written, and not at all where it is not what was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from making.small_exports import small_vit, write_package
from vitrail.core.errors import CheckpointError
from vitrail.engines.export.package import Package, is_package


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
    ],
)
def test_a_description_that_does_not_fit_is_refused(folder, changes, message):
    path = folder / "package.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    with pytest.raises(CheckpointError, match=message):
        Package.read(folder)


def test_a_folder_without_a_package_is_refused(tmp_path):
    assert not is_package(tmp_path)
    with pytest.raises(CheckpointError, match="vitrail export"):
        Package.read(tmp_path)
