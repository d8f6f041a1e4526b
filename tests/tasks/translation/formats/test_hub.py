"""Hugging Face data sets, saved ones and names; nothing asks a network."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from vitrail.core.errors import DataError
from vitrail.tasks.translation.formats.tables import NAME, is_of_pairs, read_by_name
from vitrail.tasks.translation.formats.tables import read_saved as read
from vitrail.tasks.translation.formats.tables import recognises_saved as recognises

ROWS = [{"en": f"cat {index}", "de": f"Katze {index}"} for index in range(7)]


@pytest.mark.parametrize("is_divided", [True, False])
@pytest.mark.parametrize("is_struct", [True, False])
def test_saved_data_sets_are_read(tmp_path: Path, is_divided: bool, is_struct: bool) -> None:
    import datasets

    if is_struct:
        features = datasets.Features({"translation": datasets.Translation(["en", "de"])})
        rows = datasets.Dataset.from_dict({"translation": ROWS}, features=features)
    else:
        rows = datasets.Dataset.from_list(ROWS)
    if is_divided:
        rows = datasets.DatasetDict({"train": rows, "test": rows.select([5, 2]), "unsupervised": rows})
    rows.save_to_disk(str(tmp_path / "saved"))

    assert recognises(tmp_path / "saved", None)
    raw = read(tmp_path / "saved", ("de", "en"))

    assert raw.splits["train"].sources == tuple(row["de"] for row in ROWS)
    assert raw.splits["train"].names[3] == "train#3"
    if is_divided:
        assert raw.splits["test"].targets == ("cat 5", "cat 2")  # the chosen rows, not the first ones
        assert [finding.check for finding in raw.findings] == ["unread-splits"]


def test_saved_images_and_other_folders_are_not_recognised(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"image": ["a.jpg"], "label": [0]})
    rows.save_to_disk(str(tmp_path / "saved"))
    assert not recognises(tmp_path / "saved", None)
    assert not recognises(tmp_path, None)
    assert not recognises(tmp_path / "missing", None)


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")
    (tmp_path / "dataset_info.json").write_text(json.dumps({"features": {"en": {}, "de": {}}}))
    assert recognises(tmp_path, None)
    with pytest.raises(DataError, match="cannot be read as a saved data set"):
        read(tmp_path, None)


def test_without_a_network_the_error_says_so() -> None:
    with pytest.raises(DataError, match=r"'nobody/nothing/de-en'.*cannot be loaded.*connect to the network"):
        read_by_name("nobody/nothing/de-en", None)
    with pytest.raises(DataError, match=r"not of the form owner/name"):
        read_by_name("nobody", None)


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs the package datasets.*pip install"):
        read_by_name("owner/name", None)


def test_names_have_an_owner_and_perhaps_a_configuration() -> None:
    assert NAME.match("owner/name")
    assert NAME.match("owner/name/de-en")
    assert not any(map(NAME.match, ("name", "a/b/c/d", "/a/b", "../a", "", "owner/na me")))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wmt/wmt14", True),
        ("owner/books/de-en", True),
        ("owner/books/eng_Latn-deu_Latn", True),
        ("owner/books/pt_en", True),
        ("owner/books/default", False),
        ("owner/pictures", False),
        ("pictures", False),
    ],
)
def test_a_name_tells_what_it_can(
    name: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    assert is_of_pairs(name) is expected


def test_the_local_cache_tells_what_a_name_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    for name, features in (
        ("sentences", {"translation": {"languages": ["de", "en"], "_type": "Translation"}}),
        ("pictures", {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel"}}),
    ):
        folder = tmp_path / f"owner___{name}" / "default" / "0.0.0" / "abc"
        folder.mkdir(parents=True)
        (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    assert is_of_pairs("owner/Sentences")
    assert not is_of_pairs("owner/pictures")
