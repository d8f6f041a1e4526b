from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from making.bright_boxes import NAMES, bright_detector, picture_with, small_detr
from making.image_folders import noise
from making.small_models import DETR
from vitrail.core.errors import CheckpointError, ConfigError, DataError
from vitrail.data.preprocessing import Preprocessing
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.classification.predictor import Predictor
from vitrail.tasks.detection.predictor import CLASS_IDS_FILE, Detector

RED, GREEN = (10, 20, 50, 90), (60, 30, 110, 50)


@pytest.mark.parametrize("resize", ["fit", "squash", "shortest"])
def test_boxes_are_in_pixels_of_the_original(resize: str) -> None:
    detector = Detector(bright_detector((60, 90), resize))

    (found,) = detector.detect(picture_with((120, 160), {0: RED, 1: GREEN}))

    assert (found.name, found.size, found.error) == ("image 0", (120, 160), None)
    assert [found.class_names[label] for label in found.labels] == ["red", "green"]
    assert found.scores.tolist() == pytest.approx(torch.tensor([3.0, 2.0]).sigmoid().tolist())
    # The least pixel of the input is about 2.1 pixels of the original wide, where it is squashed.
    np.testing.assert_allclose(found.boxes_xyxy, [RED, GREEN], atol=2.2)


def test_images_that_exif_turns_are_answered_upright(tmp_path: Path) -> None:
    upright = picture_with((120, 80), {0: (10, 20, 50, 90)})
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned: to be rotated by 90 degrees clockwise
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)

    (found,) = Detector(bright_detector()).detect(tmp_path / "turned.png")

    assert found.size == (120, 80)
    np.testing.assert_allclose(found.boxes_xyxy, [(10, 20, 50, 90)], atol=2)


def test_a_large_jpeg_is_decoded_smaller_and_answered_in_its_own_pixels(tmp_path: Path) -> None:
    picture_with((480, 640), {0: (80, 160, 320, 400)}).save(tmp_path / "large.jpg", quality=95)

    (found,) = Detector(bright_detector((48, 64))).detect(tmp_path / "large.jpg")

    assert found.size == (480, 640)
    np.testing.assert_allclose(found.boxes_xyxy[:1], [(80, 160, 320, 400)], atol=10)


def test_images_of_mixed_sizes_share_a_batch_and_a_bad_one_spoils_none(tmp_path: Path) -> None:
    wide, tall = picture_with((40, 120), {0: (10, 5, 60, 25)}), picture_with((128, 64), {2: (8, 16, 32, 48)})
    (tmp_path / "bad.png").write_text("no image")
    loaded = bright_detector()
    detector = Detector(loaded, batch_size=8)

    found = detector.detect(
        [wide, tmp_path / "bad.png", tall, np.full((3, 4), 9.0), np.zeros((9, 7), np.uint8)]
    )

    assert loaded.model.batches == [(3, 3, 64, 64)]
    assert [each.error is None for each in found] == [True, False, True, False, True]
    np.testing.assert_allclose(found[0].boxes_xyxy, [(10, 5, 60, 25)], atol=2)
    np.testing.assert_allclose(found[2].boxes_xyxy, [(8, 16, 32, 48)], atol=2)
    assert len(found[4].scores) == 0
    assert "not an image" in str(found[1].error)
    assert (found[3].size, tuple(found[3].boxes_xyxy.shape)) == ((0, 0), (0, 4))


def test_images_of_one_size_are_not_said_to_be_padded() -> None:
    loaded, seen = small_detr(), []
    loaded.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]))
    detector = Detector(loaded)  # a copy of the model, with its hooks

    detector.detect([Image.new("RGB", (20, 15)), Image.new("RGB", (40, 30))])
    detector.detect([Image.new("RGB", (20, 15)), Image.new("RGB", (15, 20))])

    assert seen[0] is None
    assert seen[1].tolist() == [[48, 64], [48, 36]]


def test_a_batch_of_mixed_sizes_answers_as_image_by_image() -> None:
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 255, (*size, 3), np.uint8) for size in ((48, 64), (30, 64), (48, 33))]
    loaded = small_detr()

    together = Detector(loaded).detect(images, threshold=0)
    alone = [Detector(loaded).detect(image, threshold=0)[0] for image in images]

    # Convolutions at the border see the padding, as in the published models; the boxes hardly move.
    for one, other in zip(together, alone, strict=True):
        assert len(one.scores) == DETR["num_queries"]
        assert one.scores.sum().item() == pytest.approx(other.scores.sum().item(), rel=0.05)


def test_the_threshold_is_that_of_the_run_unless_another_is_asked_for() -> None:
    picture = picture_with((64, 64), {0: (10, 20, 50, 60), 1: (1, 2, 30, 40)})
    unsure = bright_detector()
    sure = bright_detector(scores={"threshold": 0.9})

    assert [len(Detector(each).detect(picture)[0].scores) for each in (unsure, sure)] == [2, 1]
    assert len(Detector(sure).detect(picture, threshold=0.5)[0].scores) == 2
    assert len(Detector(sure).detect(picture, threshold=0)[0].scores) == 12


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_a_threshold_that_is_no_score_is_refused(threshold: float) -> None:
    with pytest.raises(ConfigError, match="the confidence threshold is"):
        Detector(bright_detector()).detect(Image.new("RGB", (4, 4)), threshold=threshold)


def test_class_ids_are_those_that_were_stored_or_count_from_one() -> None:
    counted, told = bright_detector(), bright_detector(class_ids=[7, 3, 90])
    stored = bright_detector()._replace(files={CLASS_IDS_FILE: b"[0, 4, 5]"})

    assert Detector(counted).class_ids == (1, 2, 3)
    assert Detector(told).class_ids == (7, 3, 90)
    assert Detector(stored).class_ids == (0, 4, 5)
    with pytest.raises(CheckpointError, match="3 classes and 2 different class ids"):
        Detector(bright_detector(class_ids=[1, 1, 2]))


def test_results_are_plain_json() -> None:
    (found,) = Detector(bright_detector()).detect(picture_with((64, 64), {0: (16, 8, 48, 32)}))

    assert json.loads(json.dumps(found.to_json())) == {
        "source": "image 0",
        "height": 64,
        "width": 64,
        "boxes": [{"class": "red", "score": 0.9526, "box_xyxy": [16.0, 8.0, 48.0, 32.0]}],
    }
    (failed,) = Detector(bright_detector()).detect("missing.png")
    assert failed.to_json() == {"source": "missing.png", "error": failed.error}


def test_boxes_are_drawn_where_they_are() -> None:
    picture = picture_with((400, 500), {0: (100, 200, 300, 350)})
    (found,) = Detector(bright_detector((400, 500))).detect(picture)

    difference = np.asarray(found.draw(picture)) != np.asarray(picture)

    rows, columns = difference.any(axis=-1)[230:].nonzero()
    assert (columns.min(), columns.max(), rows.max() + 230) == (100, 299, 349)


def test_a_saved_detector_is_used_by_its_folder(tmp_path: Path) -> None:
    loaded = small_detr()
    loaded.save(tmp_path / "run" / "model")
    picture = noise((30, 20))

    (saved,) = Detector(tmp_path / "run").detect(picture, threshold=0)
    (original,) = Detector(loaded).detect(picture, threshold=0)

    torch.testing.assert_close(saved.boxes_xyxy, original.boxes_xyxy)


def test_models_of_another_kind_are_refused_both_ways() -> None:
    changes = {"image_size": (16, 16), "width": 16, "depth": 1, "num_heads": 2, "num_classes": 3}
    classifier = LoadedModel(
        build("vit_nano", **changes),
        model_settings("vit_nano", **changes),
        Preprocessing(image_size=(16, 16)).model_dump(mode="json"),
        NAMES,
        {},
    )

    with pytest.raises(CheckpointError, match="vit_nano is a model for classification, not for detection"):
        Detector(classifier)
    with pytest.raises(
        CheckpointError, match=r"a model for detection, not for classification.*for .*Detector"
    ):
        Predictor(small_detr())


def test_nothing_to_look_at_is_refused() -> None:
    with pytest.raises(DataError, match="no image was named"):
        Detector(bright_detector()).detect([])
    with pytest.raises(ConfigError, match="batch size is 0"):
        Detector(bright_detector(), batch_size=0)
