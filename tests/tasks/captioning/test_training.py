"""The whole way of captioned images: checked, trained, resumed, scored, captioned, explained, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from making.caption_folders import draw_square, write_parquet
from making.saved_vit import save_vit
from making.small_runs import SMALL_RUNS
from vitrail.cli import main
from vitrail.core.errors import ConfigError, DataError
from vitrail.models.checkpoint import load_model
from vitrail.studies.inspecting import inspect_learned
from vitrail.tasks.captioning.predictor import Captioner
from vitrail.tasks.training import TrainedRun, train

pytest.importorskip("pyarrow", reason="needs the extra data")
pytest.importorskip("sacrebleu", reason="needs the extra captions")
pytest.importorskip("rouge_score", reason="needs the extra captions")

RUN = SMALL_RUNS["captioning"]


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    patch = pytest.MonkeyPatch()
    patch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("squares"), train=30, validation=5)


@pytest.fixture(scope="module")
def finished(squares: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return RUN.train(squares, tmp_path_factory.mktemp("runs"), page=True, name="first", seed=3)


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "square.png"
    draw_square(1)[0].save(path)
    return path


def test_a_run_leaves_a_captioner_with_its_vocabulary_and_a_report(finished: TrainedRun) -> None:
    assert finished.headline == "bleu4"
    assert {"bleu1", "bleu2", "bleu3", "bleu4", "cider", "rouge_l", "nll"} <= finished.scores.keys()
    page = finished.report_path.read_text()
    assert "CIDEr" in page
    assert "Typical captions" in page
    assert [path.name for path in (finished.folder / "files").iterdir()] == ["words.json"]
    loaded = load_model(finished.folder / "model")
    assert loaded.preprocessing["task"] == "captioning"
    words = json.loads(loaded.files["words.json"])
    assert {"square", "left", "red"} <= set(words)
    assert loaded.model_settings["vocabulary_size"] == 4 + len(words)


def test_files_are_captioned(finished: TrainedRun, picture: Path, tmp_path: Path) -> None:
    captioner = Captioner(finished.folder)
    (tmp_path / "broken.png").write_bytes(b"no image")
    first, broken, again = captioner.predict(
        [picture, tmp_path / "broken.png", draw_square(1)[0]], num_best=2
    )
    assert first.error is None
    assert len(first.texts) == 2
    assert broken.error is not None
    assert again.text == first.text
    assert first.to_json()["caption"] == first.text
    with pytest.raises(ConfigError, match="beam"):
        captioner.predict([picture], beam_size=2, num_best=3)


def test_commands_caption_and_explain(
    finished: TrainedRun, picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(finished.folder)
    assert main(["predict", run, str(picture), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["source"] == str(picture)
    assert main(["predict", run, str(picture)]) == 0
    assert "square.png" in capsys.readouterr().out
    table = tmp_path / "captions.csv"
    assert main(["predict", run, str(picture), "-o", str(table)]) == 0
    assert table.read_text().startswith("image,rank,caption,score,error\n")
    assert main(["predict", run, str(picture), "-o", str(tmp_path / "x.docx")]) == 2
    strip, given = tmp_path / "strip.png", ["--target", "a red square on the left"]
    assert main(["explain", run, str(picture), "-o", str(strip), *given]) == 0
    assert strip.stat().st_size > 1000


def test_an_explanation_has_a_map_for_each_word(finished: TrainedRun, picture: Path) -> None:
    captioner = Captioner(finished.folder)
    explained = captioner.explain(picture, caption="A red square.")
    assert explained.answer.words == ("a", "red", "square", "(end)")
    assert [each.layer for each in explained.layers] == ["decoder.attention"]
    attention = explained.attention(1)
    assert attention.shape == explained.layers[0].grid
    assert float(attention.sum()) == pytest.approx(1.0, abs=1e-4)
    assert captioner.explain(picture).title == captioner.predict([picture])[0].text
    with pytest.raises(ConfigError, match="there is no word 9"):
        explained.attention(9)
    with pytest.raises(DataError, match="there is no word to explain"):
        captioner.explain(picture, caption="...")


def test_a_transformer_with_subwords_starts_from_an_image_model(
    squares: Path, picture: Path, tmp_path: Path
) -> None:
    save_vit(tmp_path / "encoder", image_size=(16, 16), mean=(0.4, 0.5, 0.6))
    changes = {
        "model.width": 12,
        "model.hidden_dim": 16,
        "model.num_heads": 2,
        "model.decoder_depth": 2,
        "data.tokens": "bpe",
        "data.vocabulary_size": 60,
    }
    tiny = {key: value for key, value in RUN.changes.items() if not key.startswith("model.")}
    done = train(
        squares,
        model="caption_transformer_small",
        weights=tmp_path / "encoder",
        changes={**tiny, **changes},
        output=tmp_path,
        name="run",
    )
    assert isinstance(done, TrainedRun)
    loaded = load_model(done.folder / "model")
    assert loaded.model_settings["encoder_frozen"]
    assert loaded.preprocessing["images"]["mean"] == [0.4, 0.5, 0.6]
    encoder = load_model(tmp_path / "encoder").model
    learned = loaded.model.encoder.model
    torch.testing.assert_close(learned.stem.state_dict(), encoder.stem.state_dict())
    explained = Captioner(done.folder).explain(picture, caption="a red square")
    assert explained.answer.words == ("a", "red", "square", "(end)")
    assert len(explained.layers) == 2
    explained.save(tmp_path / "page.html")
    rewarded = {**tiny, "train.steps": 1, "task.cider_reward": 1.0, "task.bleu_reward": 2.0}
    tuned = train(squares, weights=done.folder, changes=rewarded, output=tmp_path, name="tuned")
    assert isinstance(tuned, TrainedRun)
    assert load_model(tuned.folder / "model").files == loaded.files
    logged = json.loads((tuned.folder / "metrics.jsonl").read_text().splitlines()[0])
    assert logged["unit"] == "captions"
    assert logged["parts"].keys() == {"length", "reward"}


def test_what_does_not_fit_is_refused(squares: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vit_nano does not learn from .* captions.*caption_transformer"):
        train(squares, model="vit_nano", changes={"train.steps": 1}, output=tmp_path)
    with pytest.raises(ConfigError, match=r"untrained captioner.*--weights"):
        RUN.train(squares, tmp_path, changes={"task.bleu_reward": 1.0})
    with pytest.raises(ConfigError, match="has no setting 'encoder_depth'"):
        RUN.train(squares, tmp_path, changes={"model.encoder_depth": 3})


def test_of_a_captioner_whose_words_alone_attend_it_is_said_where_their_attention_is_drawn(
    squares: Path, tmp_path: Path
) -> None:
    changes = {
        "model.encoder": "resnet18",
        "model.encoder_changes": {"width": 4, "depths": [1, 1, 1, 1]},
        "train.steps": 1,
        "train.validations": 1,
    }
    done = RUN.train(squares, tmp_path, changes=changes)

    found = inspect_learned(done.folder, num_samples=2)

    assert found.filters is not None
    assert found.heads is None
    assert "only words attend" in found.left_out["Head entropy"]
