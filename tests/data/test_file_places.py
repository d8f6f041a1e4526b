"""Files are found under the names that annotations give them."""

from __future__ import annotations

from pathlib import Path
from unicodedata import normalize

import pytest

from vitrail.data.file_places import ImageFinder, forms_of


@pytest.mark.parametrize("stored", ["NFC", "NFD"])
@pytest.mark.parametrize("asked", ["NFC", "NFD"])
def test_accents_may_be_composed_or_taken_apart(tmp_path: Path, stored: str, asked: str) -> None:
    folder, stem = "B\u00e4ume", "\u00e9t\u00e9"
    file = tmp_path / normalize(stored, folder) / normalize(stored, f"{stem}.png")
    file.parent.mkdir()
    file.write_bytes(b"")
    for name in (f"{folder}/{stem}.png", f"other/{stem}.png"):
        assert ImageFinder([tmp_path, file.parent]).find(normalize(asked, name)) == file
    assert ImageFinder([file.parent]).find_stem(normalize(asked, stem)) == file


def test_a_plain_name_has_one_form() -> None:
    assert forms_of("train/1.png") == ["train/1.png"]
