"""Exported translators are used as the runs that they were made from."""

from __future__ import annotations

import json

import pytest

from making.random_weights import randomise
from making.small_translators import ENGLISH, small_translator
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.engines.loading import is_ctranslate2
from vitrail.tasks.translation.ctranslate2_export import export_ctranslate2
from vitrail.tasks.translation.ctranslate2_folder import TRANSLATOR_FILE
from vitrail.tasks.translation.predictor import Translator

pytest.importorskip("ctranslate2")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    loaded = small_translator(norm="pre")
    randomise(loaded.model)
    loaded.about["task"] = {"beam_size": 3, "length_penalty": 0.5}
    folder = tmp_path_factory.mktemp("exports") / "en-de"
    export_ctranslate2(loaded, folder, sentences=ENGLISH)
    return loaded, folder


@pytest.mark.parametrize(
    "settings",
    [{"max_length": 9}, {"beam_size": 1, "max_length": 12}, {"beam_size": 5, "num_best": 3, "max_length": 7}],
)
def test_both_engines_translate_alike(exported, settings):
    loaded, folder = exported
    ours, theirs = (Translator(source, device="cpu") for source in (loaded, folder))
    assert theirs.search == ours.search
    assert theirs.languages == ("en", "de")
    lines = [*ENGLISH, "", "Unknown: \u4e00."]

    for own, other in zip(
        ours.translate(lines, **settings), theirs.translate(lines, **settings), strict=True
    ):
        assert other.text == own.text
        assert other.score == pytest.approx(own.score, rel=0.05)  # it gives padding no share
        assert len(other.alternatives) == len(own.alternatives)
        assert other.warnings == own.warnings


def test_every_line_has_its_own_longest_length(exported):
    loaded, folder = exported
    ours, theirs = (Translator(source, device="cpu") for source in (loaded, folder))

    found = [[each.text for each in translator.translate(ENGLISH)] for translator in (ours, theirs)]

    assert found[0] == found[1]
    assert len({len(text) for text in found[0]}) > 1


def test_it_has_no_length_penalty_of_gnmt(exported):
    translator = Translator(exported[1])
    with pytest.raises(ConfigError, match=r"no length penalty of the form gnmt.*--penalty-form power"):
        list(translator.translate(ENGLISH, penalty_form="gnmt"))


def test_it_cannot_be_explained(exported):
    _, folder = exported
    with pytest.raises(ConfigError, match="Name the run that it was made from"):
        _ = Translator(folder).model


def test_it_runs_on_cpus_alone(exported):
    with pytest.raises(ConfigError, match="the device cpu"):
        Translator(exported[1], device="meta")


def test_folders_of_other_engines_are_no_exports(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"")
    assert is_ctranslate2(tmp_path)
    (tmp_path / "model.xml").write_bytes(b"")
    assert not is_ctranslate2(tmp_path)
    assert not is_ctranslate2(tmp_path / "none")


def test_a_folder_that_was_not_written_by_us_is_explained(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"translator\.json and the subwords beside it"):
        Translator(tmp_path)
    (tmp_path / TRANSLATOR_FILE).write_text(json.dumps({"files": [], "model": {"name": "vit_nano"}}))
    with pytest.raises(CheckpointError, match="does not translate"):
        Translator(tmp_path)


def test_damaged_weights_are_explained(exported, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in exported[1].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "model.bin").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="Export the run again"):
        Translator(folder)
