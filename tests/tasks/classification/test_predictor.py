from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from making.saved_vit import save_vit
from making.small_exports import small_vit
from vitrail.core.errors import CheckpointError, ConfigError, DataError
from vitrail.data.preprocessing import Preprocessing
from vitrail.models.checkpoint import LoadedModel, load_model
from vitrail.tasks.classification.predictor import Predictor
from vitrail.train.machine import best_precision

NAMES = ("blue", "green", "red")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory that holds a small, untrained model of 3 x 2 patches."""
    return save_vit(tmp_path / "run" / "model", patch_size=4).parent


def expected_probabilities(run: Path, path: Path) -> torch.Tensor:
    loaded = load_model(run / "model")
    preprocessing = Preprocessing.from_tree(loaded.preprocessing)
    with torch.inference_mode():
        return loaded.model(preprocessing.normalise(preprocessing.read(path)[None])).softmax(-1)[0]


def test_predictions_are_those_of_the_model(run: Path, image_folder: Path) -> None:
    path = image_folder / "red" / "red-1.jpg"
    prediction = Predictor(run).predict(path, top=3)[0]
    expected = dict(zip(NAMES, expected_probabilities(run, path).tolist(), strict=True))
    assert dict(prediction.scores) == pytest.approx(expected, rel=1e-5)
    assert prediction.label == max(expected, key=expected.__getitem__)
    assert prediction.error is None


def test_a_folder_is_predicted_in_batches_as_image_by_image(run: Path, image_folder: Path) -> None:
    together = Predictor(run, batch_size=4).predict(image_folder)
    assert len(together) == 15
    alone = [Predictor(run, batch_size=1).predict(each.source)[0] for each in together]
    for one, other in zip(together, alone, strict=True):
        assert one.source == other.source
        assert dict(one.scores) == pytest.approx(dict(other.scores), rel=1e-4)


def test_bad_files_are_reported_at_their_positions(run: Path, image_folder: Path) -> None:
    (image_folder / "empty.png").touch()
    (image_folder / "text.jpg").write_text("no image")
    good = image_folder / "blue" / "blue-0.png"
    names = [image_folder / "empty.png", good, image_folder / "text.jpg", "missing.png", good]
    predictions = Predictor(run, batch_size=2).predict(names)
    assert [each.error is None for each in predictions] == [False, True, False, False, True]
    assert "0 bytes" in str(predictions[0].error)
    assert "does not exist" in str(predictions[3].error)
    assert predictions[1] == predictions[4]
    assert predictions[0].to_json() == {"source": str(names[0]), "error": predictions[0].error}


def test_patterns_and_folders_stand_for_their_images_and_none_is_refused(
    run: Path, image_folder: Path, tmp_path: Path
) -> None:
    predictor = Predictor(run)
    predictions = predictor.predict(str(image_folder / "*" / "*-1.jpg"))
    assert [Path(each.source).name for each in predictions] == ["blue-1.jpg", "green-1.jpg", "red-1.jpg"]
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    shutil.copy(image_folder / "red" / "red-1.jpg", mixed / "photo")
    (mixed / "README").write_text("no image")
    assert [Path(each.source).name for each in predictor.predict(mixed)] == ["photo"]
    with pytest.raises(DataError, match="holds no image"):
        predictor.predict(str(image_folder / "*.webp"))
    with pytest.raises(DataError, match="no image was named"):
        predictor.predict([])
    with pytest.raises(DataError, match="is an address"):
        predictor.predict("https://example.com/a.jpg")


def test_a_model_whose_replacement_was_killed_is_found(run: Path) -> None:
    (run / "model").rename(run / ".model.ready")
    assert len(Predictor(run).class_names) == 3


def test_pictures_in_memory_are_predicted_like_files(run: Path, image_folder: Path) -> None:
    path = image_folder / "green" / "green-2.png"
    with Image.open(path) as picture:
        in_memory = picture.convert("RGB")
    prediction = Predictor(run).predict([in_memory])[0]
    assert dict(prediction.scores) == pytest.approx(dict(Predictor(run).predict(path)[0].scores))
    assert prediction.source == "image 0"


def test_folder_of_a_model_and_a_loaded_model_serve_as_a_run_does(run: Path, image_folder: Path) -> None:
    path = image_folder / "green" / "green-2.png"
    loaded: LoadedModel = load_model(run / "model")
    predictions = [Predictor(source).predict(path)[0] for source in (run, str(run / "model"), loaded)]
    assert predictions[0] == predictions[1] == predictions[2]
    tops = [Predictor(run).predict(path, top=top)[0].scores for top in (1, 2, 9)]
    assert [len(scores) for scores in tops] == [1, 2, 3]


def test_what_cannot_predict_is_refused(run: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"is not finished.*vitrail train --resume .*"):
        Predictor(unfinished)
    with pytest.raises(CheckpointError, match=r"there is no .*none\. Expected a run directory"):
        Predictor(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"Name a file of weights as file:.*pth"):
        Predictor(tmp_path / "weights.pth")
    with pytest.raises(ConfigError, match="batch size is 0"):
        Predictor(run, batch_size=0)


def test_explanation_agrees_with_the_prediction(run: Path, image_folder: Path) -> None:
    predictor, path = Predictor(run), image_folder / "red" / "red-0.png"
    explanation = predictor.explain(path)
    assert dict(explanation.scores) == pytest.approx(dict(predictor.predict(path)[0].scores))
    assert explanation.picture.size == (23, 17), "the whole photograph"
    left, top, right, bottom = explanation.crop
    assert (right - left) * 23 / ((bottom - top) * 17) == pytest.approx(8 / 12), "what the model saw of it"
    assert len(explanation.layers) == 2
    assert explanation.maps[0].reader == "mean"


def test_explanation_shows_what_the_pooled_patches_attend_to(run: Path, image_folder: Path) -> None:
    explanation = Predictor(run).explain(image_folder / "red" / "red-0.png")
    weights = explanation.layers[0].weights[0]
    one = explanation.relevance("attention", layer=1, head=2)
    joined = explanation.relevance("attention", layer=1)
    rollout = explanation.relevance()
    torch.testing.assert_close(one, weights[1].mean(0).reshape(3, 2))
    torch.testing.assert_close(joined, weights.mean(0).mean(0).reshape(3, 2))
    assert rollout.sum().item() == pytest.approx(1, abs=1e-5)


def test_class_token_models_are_read_at_the_class_token(tmp_path: Path, image_folder: Path) -> None:
    save_vit(tmp_path / "model", patch_size=4, class_token=True, pool="class")
    explanation = Predictor(tmp_path / "model").explain(image_folder / "red" / "red-0.png")
    torch.testing.assert_close(
        explanation.relevance("attention", layer=2, head=1),
        explanation.layers[1].weights[0, 0, 0, 1:].reshape(3, 2),
    )


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"method": "magic"}, "magic"),
        ({"layer": 3}, "no layer 3"),
        ({"layer": 0}, "no layer 0. Expected 1, the first, to 2, or -1"),
        ({"head": -3}, "no head .*-3"),
    ],
)
def test_choices_that_do_not_exist_are_refused(
    run: Path, image_folder: Path, choice: dict[str, object], message: str
) -> None:
    explanation = Predictor(run).explain(image_folder / "red" / "red-0.png")
    with pytest.raises(ConfigError, match=message):
        explanation.relevance(**{"method": "attention", **choice})


def test_overlay_and_sheet_are_written_as_pictures(run: Path, image_folder: Path, tmp_path: Path) -> None:
    explanation = Predictor(run).explain(image_folder / "red" / "red-0.png")
    explanation.save(tmp_path / "overlay.png")
    with Image.open(tmp_path / "overlay.png") as written:
        assert np.array_equal(np.asarray(written), np.asarray(explanation.still()))
        drawn = explanation.overlay()
        assert np.array_equal(np.asarray(written)[: drawn.height], np.asarray(drawn))
    assert drawn.width / drawn.height == 23 / 17
    assert explanation.sheet().width > 2 * 48
    with pytest.raises(ConfigError, match="no suffix of a known format"):
        explanation.save(tmp_path / "overlay")


def test_floating_point_pixels_from_zero_to_one_are_seen_and_others_refused(run: Path) -> None:
    values = np.random.default_rng(0).random((12, 8), dtype=np.float32)
    in_bytes = Image.fromarray(np.rint(values * 255).astype(np.uint8))
    nothing = Image.fromarray(np.full((12, 8), np.nan, dtype=np.float32))
    first, second, refused = Predictor(run).predict([Image.fromarray(values), in_bytes, nothing])
    assert first.scores == second.scores
    assert refused.error is not None
    assert "NaN" in refused.error


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_other_precisions_predict_nearly_the_same(image_folder: Path, precision: str) -> None:
    if precision == "bfloat16" and best_precision(torch.device("cpu")) != precision:
        pytest.skip("no bfloat16 in hardware")
    loaded, calibration = small_vit(), image_folder if precision == "int8" else None
    predictor = Predictor(loaded, device="cpu", precision=precision, calibration=calibration)
    assert (predictor.engine.name, predictor.engine.precision) == ("torch", precision)
    found, exact = (each.predict(image_folder) for each in (predictor, Predictor(loaded, device="cpu")))
    for one, other in zip(found, exact, strict=True):
        assert dict(one.scores) == pytest.approx(dict(other.scores), abs=0.03)
        assert dict(one.scores) != dict(other.scores)


def test_explanations_are_those_of_the_model_whatever_predicts(image_folder: Path) -> None:
    path, loaded = image_folder / "red" / "red-1.jpg", small_vit()
    explanation = Predictor(loaded, device="cpu", precision="int8", calibration=path).explain(path)
    exact = Predictor(loaded, device="cpu").predict(path)[0]
    assert explanation.probability == pytest.approx(exact.probability, rel=1e-5)
