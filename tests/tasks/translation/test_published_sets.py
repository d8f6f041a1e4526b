"""Test sets by name: from sacrebleu's folder, and clear words where they cannot be had."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from vitrail.core.errors import DataError
from vitrail.tasks.registry import task_of_source
from vitrail.tasks.translation.opening import open_pairs
from vitrail.tasks.translation.settings import PairDataSettings

DATASETS = pytest.importorskip("sacrebleu.dataset").DATASETS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of sacrebleu's, and no network."""

    def refuse(url: str) -> None:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    for name in ("wmt14/full", "wmt17"):
        monkeypatch.setattr(DATASETS[name], "_outdir", str(tmp_path / name))
        monkeypatch.setattr(DATASETS[name], "_rawdir", str(tmp_path / name / "raw"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(name: str, languages: tuple[str, str] | None = ("en", "de")):
    return open_pairs(name, settings=PairDataSettings(source=name, languages=languages))


@pytest.mark.parametrize(
    ("name", "own", "languages"),
    [
        ("newstest2014", "wmt14/full", ("en", "de")),
        ("newstest2017", "wmt17", ("de", "en")),
        ("sacrebleu:wmt17", "wmt17", ("en_GB", "de")),
    ],
)
def test_a_set_is_read_from_the_folder_of_sacrebleu(
    folder: Path, name: str, own: str, languages: tuple[str, str]
) -> None:
    pair = "-".join(language[:2] for language in languages)
    (folder / own).mkdir(parents=True)
    for field in DATASETS[own].fieldnames(pair):
        content = {"src": "one\ntwo\n", "ref": "eins\nzwei\n"}.get(field, "x\nx\n")
        Path(DATASETS[own]._get_txt_file_path(pair, field)).write_text(content)

    dataset = read(name, languages)

    assert task_of_source(name).name == "translation"
    assert (dataset.test.sources, dataset.test.targets) == (("one", "two"), ("eins", "zwei"))
    assert (len(dataset.train), dataset.languages) == (0, languages)


@pytest.mark.parametrize(
    ("name", "languages", "message"),
    [
        (
            "newstest2014",
            ("en", "de"),
            "cannot be downloaded: .*not known.* sacrebleu -t wmt14/full -l en-de",
        ),
        ("newstest2014", ("en", "fi"), "asked for in en-fi.* Expected two languages among .*en-de"),
        ("newstest2014", None, "asked for in no languages.* --languages en,de"),
        ("newstest2099", ("en", "de"), "no test set 'wmt99'"),
        ("sacrebleu:wmt71", ("en", "de"), "no test set 'wmt71'.*Did you mean 'wmt"),
    ],
)
def test_what_cannot_be_had_is_said(
    folder: Path, name: str, languages: tuple[str, str] | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(name, languages)


def test_files_of_that_name_come_first(folder: Path) -> None:
    for language, word in (("en", "dog"), ("de", "Hund")):
        (folder / f"newstest2014.{language}").write_text(f"{word}\n" * 3)

    assert read("newstest2014").format == "two text files"
