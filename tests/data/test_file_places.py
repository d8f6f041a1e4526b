"""Files are found under the names that annotations give them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unicodedata import normalize

import pytest

from vitrail.core.errors import DataError
from vitrail.data.file_places import ImageFinder, forms_of, list_images, walk


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


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def scandir(place: str) -> object:
        if str(place).endswith("red"):
            raise PermissionError(errno.EACCES, "Permission denied", place)
        return scan(place)

    (tmp_path / "red").mkdir()
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match=r"the folder \S+red cannot be listed: Permission denied"):
        list_images(tmp_path)
    assert list(walk(tmp_path / "none")) == []
