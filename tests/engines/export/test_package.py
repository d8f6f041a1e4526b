"""A package is read as it was written, and not at all where it is not what was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitrail.core.errors import CheckpointError
from vitrail.engines.export.package import Comparison, Package, PortSpec, digest_files, is_package


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.xml").write_text("graph")
    (tmp_path / "model.bin").write_bytes(b"weights")
    Package(
        task="classification",
        format="openvino",
        precision="float32",
        model_settings={"name": "vit_ti16"},
        preprocessing={"image_size": [7, 5]},
        class_names=("ant", "bee"),
        about={"run": "photos"},
        inputs=(PortSpec(name="images", dtype="float32", axes=("batch", 3, 7, 5)),),
        outputs=(PortSpec(name="logits", dtype="float32", axes=("batch", 2)),),
        comparison=Comparison(
            images="3 generated images",
            num_images=3,
            largest_logit_difference=1e-6,
            mean_logit_difference=1e-7,
            top1_agreement=1.0,
        ),
        tolerance=1e-3,
        files=digest_files(tmp_path),
    ).write(tmp_path)
    return tmp_path


def test_a_package_is_read_as_it_was_written(folder):
    package = Package.read(folder)

    assert package.inputs[0].axes == ("batch", 3, 7, 5)
    assert package.model_path == folder / "model.xml"
    assert set(package.files) == {"model.xml", "model.bin"}
    assert package.comparison.top1_agreement == 1.0
    assert is_package(folder)


def test_where_it_lies_is_not_written_down(folder):
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
