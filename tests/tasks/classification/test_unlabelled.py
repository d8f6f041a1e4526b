"""Splits whose labels are not published, as tests of contests are, take nobody's place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vitrail.core.errors import DataError
from vitrail.tasks.classification.opening import open_dataset

NAMES = ["cat", "dog"]


def write_pictures(folder: Path, count: int) -> list[str]:
    folder.mkdir(parents=True)
    paths = [folder / f"{index}.png" for index in range(count)]
    for index, path in enumerate(paths):
        Image.new("RGB", (5, 7), (index, 40, 200)).save(path)
    return [str(path) for path in paths]


def save(root: Path, labels: dict[str, list[Any]], *, named: bool) -> Path:
    """Write what the hub publishes: a column of images and one of labels in each split."""
    import datasets

    label = datasets.ClassLabel(names=NAMES) if named else datasets.Value("string")
    features = datasets.Features({"image": datasets.Image(), "label": label})
    splits = {
        split: datasets.Dataset.from_dict(
            {"image": write_pictures(root / split, len(values)), "label": values}, features=features
        )
        for split, values in labels.items()
    }
    datasets.DatasetDict(splits).save_to_disk(root / "saved")
    return root / "saved"


@pytest.mark.parametrize(
    ("known", "unknown", "named"), [([0, 1], -1, True), ([0, 1], None, True), (NAMES, None, False)]
)
def test_a_test_without_labels_gives_its_place_to_the_validation(
    tmp_path: Path, known: list[Any], unknown: Any, named: bool
) -> None:
    saved = save(
        tmp_path, {"train": known * 6, "validation": [*known, unknown], "test": [unknown] * 3}, named=named
    )
    dataset = open_dataset(saved)

    assert dataset.class_names == tuple(NAMES)
    assert dataset.test.labels.tolist() == [0, 1]
    assert dataset.test.names == ("validation#0", "validation#1")
    found = {finding.check: finding for finding in dataset.findings}
    assert found["unlabelled-splits"].items == ("test",)
    assert "validation-as-test" in found


def test_training_images_without_labels_are_no_training_images(tmp_path: Path) -> None:
    saved = save(tmp_path, {"train": [-1] * 3, "test": [0, 1]}, named=True)
    with pytest.raises(DataError, match="0 training images"):
        open_dataset(saved)


def test_tables_of_the_hub_are_read_the_same_way(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    for split, values in {"train": [0, 1] * 6, "test": [-1] * 3}.items():
        rows = {"image": write_pictures(tmp_path / "pictures" / split, len(values)), "label": values}
        (tmp_path / "tables").mkdir(exist_ok=True)
        datasets.Dataset.from_dict(rows, features=features).to_parquet(
            tmp_path / "tables" / f"{split}.parquet"
        )
    dataset = open_dataset(tmp_path / "tables")

    assert len(dataset.test)
    assert {"unlabelled-splits", "incomplete-rows"} <= {finding.check for finding in dataset.findings}
