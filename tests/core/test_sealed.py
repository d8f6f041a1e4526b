"""JSON files with a digest of themselves."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from vitrail.core.errors import CheckpointError, DataError
from vitrail.core.sealed import read_sealed, sealed, write_sealed

TREE = {"step": 9, "scores": {"loss": 0.25, "names": ["a", "\u00e9", "\udcff"]}, "none": None}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_sealed(tmp_path / "a", TREE)
    assert read_sealed(tmp_path / "a") == TREE


def test_the_digest_is_of_the_values_in_any_order_and_spacing(tmp_path: Path) -> None:
    path, tree = tmp_path / "a", {"step": 9, "name": "\u00e9"}
    digest = hashlib.sha256(rb'{"name": "\u00e9", "step": 9}').hexdigest()[:32]
    write_sealed(path, tree)
    text = f'{{\n  "digest": "{digest}",\n  "step": 9,\n  "name": "\u00e9"\n}}\n'
    assert path.read_bytes() == text.encode()
    path.write_text(f'{{"name":"\\u00e9","digest":"{digest}","step":9}}')
    assert read_sealed(path) == tree


@pytest.mark.parametrize(
    "change",
    [
        ('"step": 9', '"step": 7'),
        ('"step": 9', '"stop": 9'),
        ("0.25", "0.250001"),
        ("0.25", '"0.25"'),
        ("null", "0"),
        ('"a",', ""),
        ('  "step": 9,\n', ""),
        ("[", "{"),
        ("}", ""),
        ("{", ""),
        ('"digest": "', '"digest": "0'),
        ('"digest": "', '"digest": "g'),
    ],
)
def test_a_change_is_noticed(tmp_path: Path, change: tuple[str, str]) -> None:
    path = tmp_path / "a"
    path.write_text(sealed(TREE).encode(errors="backslashreplace").decode().replace(*change))
    with pytest.raises(CheckpointError, match=r"does not match its digest|cannot be read"):
        read_sealed(path)


@pytest.mark.parametrize("text", [json.dumps(TREE), json.dumps({**TREE, "step": 7})])
def test_without_a_digest_or_unverified_a_file_may_be_changed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a"
    path.write_text(text)
    assert read_sealed(path) == json.loads(text)
    path.write_text(sealed(TREE).replace("9", "7").encode(errors="backslashreplace").decode())
    assert read_sealed(path, is_verified=False)["step"] == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "Expecting value"),
        (b"\xff", "UTF-8"),
        (b"3", "holds a int, not an object"),
        (b"[]", "holds a list, not an object"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_object_is_an_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "a"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=f"{message}.*Expected an object. Do so."):
        read_sealed(path, expected="an object", remedy="Do so", error=DataError)


def test_a_list_of_an_older_file_is_a_field(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[1, 2]")
    assert read_sealed(tmp_path / "a", list_field="rows") == {"rows": [1, 2]}
