"""Parquet with a column for each language or a struct of them, whole or in parts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vitrail.core.errors import DataError
from vitrail.tasks.translation.formats import PAIR_FORMATS

read, recognises = PAIR_FORMATS["parquet of pairs"].read, PAIR_FORMATS["parquet of pairs"].recognises

SOURCES, TARGETS = ["A cat.", "A dog.", None], ["Eine Katze.", "Ein Hund.", "Ein Vogel."]
TABLES: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"en": SOURCES, "de": TARGETS}, ("en", "de")),
    ({"target": TARGETS, "source": SOURCES, "score": [0.5, 0.25, 0.0]}, ("source", "target")),
    (
        {
            "id": [1, 2, 3],
            "translation": [{"en": s, "de": t} for s, t in zip(SOURCES, TARGETS, strict=True)],
        },
        ("en", "de"),
    ),
]


@pytest.mark.parametrize(("columns", "languages"), TABLES)
def test_columns_and_structs_are_read(
    tmp_path: Path, columns: dict[str, Any], languages: tuple[str, str]
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    assert recognises(tmp_path / "rows.parquet", None)
    raw = read(tmp_path / "rows.parquet", None)
    assert raw.languages == languages
    assert raw.splits["train"].sources == ("A cat.", "A dog.", "")
    assert raw.splits["train"].targets == tuple(TARGETS)
    assert raw.splits["train"].names[2] == "rows.parquet#2"


def test_parts_of_splits_are_joined(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        pq.write_table(pa.table(TABLES[2][0]), tmp_path / "data" / f"{name}.parquet")
    assert recognises(tmp_path, None)
    raw = read(tmp_path, ("de", "en"))
    assert {name: len(split) for name, split in raw.splits.items()} == {"train": 6, "validation": 3}
    assert len(set(raw.splits["train"].names)) == 6
    assert raw.splits["train"].sources[3] == "Eine Katze."


def test_images_are_not_recognised(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [b"x"], "label": [0]}), tmp_path / "train.parquet")
    assert not recognises(tmp_path / "train.parquet", None)
    assert not recognises(tmp_path, None)


def test_damaged_files_are_not_recognised_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 damaged")
    assert not recognises(path, None)
    with pytest.raises(DataError, match=r"rows\.parquet cannot be read as a table"):
        read(path, None)
    pq.write_table(pa.table({"en": pa.array([], pa.string()), "de": pa.array([], pa.string())}), path)
    with pytest.raises(DataError, match="has no row"):
        read(path, None)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    bad = pa.array([b"f\xfcr"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"en": bad, "de": ["x"]}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"cannot be read as a table: .*utf-8"):
        read(tmp_path / "rows.parquet", None)


def test_without_pyarrow_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(TABLES[0][0]), path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert not recognises(path, None)
    with pytest.raises(DataError, match=r"needs the package pyarrow.*pip install"):
        read(path, None)
