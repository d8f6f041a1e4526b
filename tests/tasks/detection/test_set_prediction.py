from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from making.box_scenes import make_scenes, write_coco
from making.small_models import small_configs
from making.small_runs import SMALL_RUNS
from vitrail.core.boxes import xyxy_to_cxcywh
from vitrail.core.errors import ConfigError
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.models.contract import BoxTargets, DetectionModelConfig, DetectionOutput
from vitrail.tasks.detection.detections import ImageBoxes
from vitrail.tasks.detection.objective import DetectionObjective
from vitrail.tasks.detection.set_prediction import GAP_PX, draw_matching, suppress
from vitrail.tasks.evaluating import evaluate
from vitrail.tasks.training import TrainedRun, train

pytest.importorskip("scipy", reason="needs the extra detection")
pytest.importorskip("faster_coco_eval", reason="needs the extra detection")

DETECTORS = small_configs(DetectionModelConfig)


@pytest.mark.parametrize("name", DETECTORS)
def test_the_last_decoder_block_predicts_what_the_model_does(name: str) -> None:
    torch.manual_seed(3)
    model = DETECTORS[name].build().eval()
    images, sizes = torch.randn(2, 3, 48, 64), torch.tensor([[48, 64], [33, 50]])
    with torch.no_grad():
        output, by_block = model(images, sizes), model.by_block(images, sizes)

    assert len(by_block) == DETECTORS[name].decoder_depth
    torch.testing.assert_close(by_block[-1].logits, output.logits)
    torch.testing.assert_close(by_block[-1].boxes, output.boxes)


def test_suppression_is_that_of_torchvision() -> None:
    torchvision = pytest.importorskip("torchvision", reason="the reference")
    torch.manual_seed(0)
    corners = torch.rand(60, 2) * 50
    boxes = torch.cat((corners, corners + 10 + torch.rand(60, 2) * 30), dim=1)
    labels, scores = torch.randint(3, (60,)), torch.rand(60)
    image = ImageBoxes(0, boxes[:0], labels[:0], labels[:0].bool(), boxes, labels, scores)

    kept = suppress(image, 0.5)

    expected = torchvision.ops.batched_nms(boxes, scores, labels, 0.5)
    assert 5 < len(expected) < 60
    torch.testing.assert_close(kept.found_scores, scores[expected])
    torch.testing.assert_close(kept.found_xyxy, boxes[expected])
    assert kept.found_labels.tolist() == labels[expected].tolist()


def test_suppression_by_hand() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 9], [20, 0, 30, 10]])
    labels, scores = torch.tensor([0, 0, 1, 0]), torch.tensor([0.5, 0.9, 0.3, 0.1])
    image = ImageBoxes(0, boxes[:0], labels[:0], labels[:0].bool(), boxes, labels, scores)
    assert suppress(image).found_scores.tolist() == pytest.approx([0.9, 0.3, 0.1])


def test_matching_is_drawn_from_each_box_to_the_query_that_fits_best() -> None:
    true = xyxy_to_cxcywh(torch.tensor([[0.1, 0.1, 0.3, 0.3], [0.6, 0.6, 0.9, 0.9]]))
    targets = BoxTargets(torch.tensor([[0, 1]]), true[None], torch.tensor([2]))
    unused = torch.tensor([[0.5, 0.1, 0.02, 0.02]])
    logits = torch.tensor([[0.0, 5, 0], [0, 0, 5], [5, 0, 0]])  # the second class, no object, the first
    output = DetectionOutput(logits[None], torch.cat((true[1:], unused, true[:1]))[None])
    objective = DetectionObjective(2, BoxPreprocessing(image_size=(400, 400)), scoring="softmax")

    sheet = draw_matching(Image.new("RGB", (400, 400)), output, targets, objective, ["ball", "cube"])

    assert sheet.size == (800 + GAP_PX, 400)
    middles = [(80, 80), (300, 300)]  # of the ground truth, in order; drawn in the class's colour between
    for (x, y), colour in zip(middles, ((86, 180, 233), (230, 159, 0)), strict=True):
        assert sheet.getpixel((400 + GAP_PX // 2, y)) == colour  # level, as both sides show the same place
        assert x < 400
    assert sheet.getpixel((400 + GAP_PX + 200, 40)) == (128, 128, 128)  # a query without an object


def test_reports_and_evaluations_show_queries_blocks_matching_and_attention(tmp_path: Path) -> None:
    data = write_coco(tmp_path / "cells", make_scenes(train=7, validation=2, test=3))
    small = {**SMALL_RUNS["detection"].changes, "model.backbone_width": 8, "model.decoder_depth": 2}
    small = {
        name: value for name, value in small.items() if "proposals" not in name and "denoising" not in name
    }
    done = train(data, model="detr_nano", changes=small, output=tmp_path, name="plain")
    assert isinstance(done, TrainedRun)

    evaluate(done.folder, data, figures=tmp_path / "figures.html")
    evaluate(done.folder, data, figures=tmp_path / "figures.png")

    for page in (done.report_path.read_text(), (tmp_path / "figures.html").read_text()):
        for heading in ("Decoder blocks", "Object queries", "Matching", "Attention"):
            assert f"<h2>{heading}</h2>" in page
        assert "<h2>Conclusions</h2>" in page
        assert "AP50 with NMS" in page
        assert "query 0:" in page
    with Image.open(tmp_path / "figures.png") as picture:
        assert picture.width > 2 * picture.height
    with pytest.raises(ConfigError, match=r"figures\.txt"):
        evaluate(done.folder, data, figures=tmp_path / "figures.txt")
