"""Explained captions: a map for each word, words that a model does not know, and what cannot be explained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from making.caption_folders import draw_square
from making.small_models import small_captioner
from vitrail.cli import main
from vitrail.core.errors import DataError
from vitrail.data.text.word_groups import END
from vitrail.tasks.captioning.explanation import explain_caption_files
from vitrail.tasks.captioning.predictor import Captioner
from vitrail.tasks.explaining import ExplainOptions

KNOWN, PARTLY_KNOWN = "a dog on grass", "a cat on a sofa with xylophone"


@pytest.fixture(scope="module")
def captioner() -> Captioner:
    return Captioner(small_captioner())


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "square.png"
    draw_square(1)[0].save(path)
    return path


def test_every_word_keeps_a_map_of_its_own_whether_it_is_known_or_not(
    captioner: Captioner, picture: Path
) -> None:
    explained = captioner.explain(picture, caption=PARTLY_KNOWN)

    assert explained.answer.words == (*PARTLY_KNOWN.split(), END)
    assert explained.answer.unknown_words == ["cat", "sofa", "with", "xylophone"]
    assert explained.answer.labels[:3] == ("a", "cat (unknown)", "on")
    assert explained.maps[0].queries.texts == explained.answer.labels
    assert explained.layers[0].weights.shape[2] == 8
    # What stands before an unknown word cannot depend on it, and so is read as without it.
    alone = captioner.explain(picture, caption="a")
    torch.testing.assert_close(explained.attention(0), alone.attention(0))


def test_a_caption_of_known_words_marks_none(captioner: Captioner, picture: Path) -> None:
    explained = captioner.explain(picture, caption=KNOWN)

    assert explained.answer.unknown_words == []
    assert explained.answer.labels == (*KNOWN.split(), END)


def test_the_command_warns_of_each_unknown_word_once(
    picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.engines.loading.load_any", lambda run: small_captioner())

    def explain(target: str) -> str:
        """Return what follows the sentence about the picture."""
        arguments = ["a run", str(picture), "--target", target, "-o", str(tmp_path / "strip.png")]
        assert main(["explain", *arguments]) == 0
        said = " ".join(capsys.readouterr().err.split())
        start, end = f"vitrail: square.png: {target}; decoder, attention, ", " times even attention"
        assert said.startswith(start)
        return said.partition(end)[2].strip()

    assert explain("a cat and a cat") == (
        "vitrail: warning: 2 words are not in the model's vocabulary: cat, and"
    )
    assert explain("xylophone") == ("vitrail: warning: 1 word is not in the model's vocabulary: xylophone")
    assert explain(KNOWN) == ""


@pytest.mark.parametrize(
    ("caption", "message"),
    [
        ("", "there is no word to explain in ''"),
        (" .. ", "there is no word to explain"),
        ("a " * 101, "a caption of 101 tokens"),
    ],
)
def test_a_caption_that_cannot_be_explained_is_not_blamed_on_the_image(
    captioner: Captioner, picture: Path, tmp_path: Path, caption: str, message: str
) -> None:
    with pytest.raises(DataError) as refused:
        explain_caption_files(captioner, [picture], ExplainOptions(tmp_path / "strip.png", target=caption))

    assert str(refused.value).startswith(message)
