"""A cheap look tells parallel text, detection data and images apart, and never fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from making.box_scenes import (
    varied_scenes,
    varied_splits,
    write_coco,
    write_flat_voc,
    write_roboflow,
    write_voc,
    write_yolo,
)
from vitrail.core.errors import DataError
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.registry import recognise, task_of_source
from vitrail.tasks.translation.opening import open_pairs


def put(path: Path, content: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_text_files_are_pairs_by_folder_file_and_common_name(tmp_path: Path) -> None:
    for name in ("train.en", "train.de"):
        put(tmp_path / name, "x\n")
    sources = (tmp_path, tmp_path / "train", tmp_path / "train.en", str(tmp_path / "train.de"))
    assert [recognise(source) for source in sources] == ["translation"] * 4


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "en\tde\nx\ty\n"),
        ("a.tsv", "A cat.\tEine Katze.\n"),
        ("a.tsv", "eng\tpcm\nA cat.\tEine Katze.\n\nTwo cats.\tZwei Katzen.\n"),  # documents, not CoNLL
        ("a.csv", "source,target\nx,y\n"),
        ("deu.txt", "A cat.\tEine Katze.\tCC-BY\n"),
        ("a.jsonl", '{"translation": {"en": "x", "de": "y"}}\n'),
        ("data/train.jsonl", '{"en": "x", "de": "y"}\n'),
    ],
)
def test_tables_of_pairs_are_pairs(tmp_path: Path, name: str, content: str) -> None:
    path = put(tmp_path / name, content)
    assert recognise(path) == "translation"
    assert recognise(tmp_path) == "translation"


@pytest.mark.parametrize(
    ("columns", "task"),
    [
        ({"translation": [{"en": "x", "de": "y"}]}, "translation"),
        ({"image": [b"x"], "label": [1]}, "classification"),
        (
            {"image": [b"x"], "objects": [{"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": [1]}]},
            "detection",
        ),
    ],
)
def test_parquet_is_recognised_by_its_columns(tmp_path: Path, columns: dict[str, Any], task: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    assert recognise(tmp_path / "train.parquet") == recognise(tmp_path) == task


def test_a_translation_memory_is_explained_as_pairs(tmp_path: Path) -> None:
    path = put(tmp_path / "old.tmx", "<tmx></tmx>")
    assert recognise(path) == "translation"
    with pytest.raises(DataError, match=r"Export the translation memory as two columns, old\.tsv"):
        open_pairs(path)


def test_a_setting_that_one_task_has_decides(tmp_path: Path) -> None:
    table = str(put(tmp_path / "a.csv", "text,label\nA cat.,animal\n"))
    asked = ({}, {"data.languages": ["en", "de"]}, {"data.image_column": "x"}, {"data.vocabulary_size": 9})
    tasks = ["labelling", "translation", "classification", "labelling"]
    assert [task_of_source(table, each).name for each in asked] == tasks


def test_names_are_enough_and_what_is_missing_is_images() -> None:
    names = ["digits", "builtin:digits", "mnist5k", "fashion-mnist", "hf:owner/pictures"]
    missing = ["missing", "a/b/missing", "", " ", "~no-such-user/x", "\0"]
    assert {name for name in (*names, *missing) if recognise(name) != "classification"} == set()
    for name in ("hf:wmt/wmt14", "hf:owner/books/de-en", "wmt/wmt14"):
        assert recognise(name) == "translation"
    assert recognise("hf:owner/hard-hat-object-detection") == "detection"


@pytest.mark.parametrize(
    "content", ["image,label\na.jpg,cat\n", "file_name,source,target\na.jpg,web,cat\n", "a.jpg,cat\n", ""]
)
def test_tables_of_images_are_images(tmp_path: Path, content: str) -> None:
    assert recognise(put(tmp_path / "train.csv", content)) == "classification"
    put(tmp_path / "images" / "a.jpg")
    assert recognise(tmp_path) == "classification"


def test_images_with_boxes_are_told_in_every_format(tmp_path: Path) -> None:
    for index, write in enumerate((write_coco, write_roboflow, write_voc, write_yolo)):
        assert recognise(write(tmp_path / str(index), varied_splits())) == "detection"
    assert recognise(write_flat_voc(tmp_path / "flat", varied_scenes(3, seed=0))) == "detection"
    assert recognise(tmp_path / "0" / "annotations" / "instances_train.json") == "detection"
    assert recognise(tmp_path / "3" / "data.yaml") == "detection"


def test_class_folders_are_images_even_with_stray_texts(image_folder: Path, divided_folder: Path) -> None:
    assert recognise(image_folder) == recognise(divided_folder) == "classification"
    put(image_folder / "data.yaml", "name: beans\n")
    put(image_folder / "README.txt", "0 images\n")
    put(image_folder / "red" / "red-0.txt", "a red one\n")
    put(image_folder / "labels" / "names.txt", "red\n")
    put(image_folder / "summary.json", '{"images": 15}')
    put(image_folder / "notes.xml", "<notes/>")
    assert recognise(image_folder) == "classification"


def test_a_run_directory_is_no_text(tmp_path: Path) -> None:
    put(tmp_path / "config.json", "{}")
    put(tmp_path / "metrics.jsonl", json.dumps({"step": 1, "train/loss": 2.0, "lr": 0.1}) + "\n")
    put(tmp_path / "model" / "model.json", "{}")
    assert recognise(tmp_path) == "classification"


def test_damaged_files_are_looked_at_without_an_error(tmp_path: Path) -> None:
    for name in ("train.tsv.gz", "train.jsonl", "train.parquet", "dataset_dict.json", "train.csv"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00damaged")
        assert recognise(tmp_path / name) == "classification"
    assert recognise(tmp_path) == "classification"


def test_a_table_in_utf_16_is_looked_at_without_an_error(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_bytes("text;label\r\nI am here;en\r\nJe suis;fr\r\n".encode("utf-16"))
    assert recognise(path) == "classification"
    with pytest.raises(DataError, match=r"texts\.csv is encoded as UTF-16"):
        open_dataset(path)
