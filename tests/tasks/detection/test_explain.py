from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from making.bright_boxes import NAMES, BrightBoxes, bright_detector, picture_with, small_detr
from making.image_folders import noise
from making.small_models import DETR
from vitrail.core.boxes import xyxy_to_cxcywh
from vitrail.core.errors import ConfigError, DataError
from vitrail.interpret import record_attention
from vitrail.models.contract import DetectionOutput
from vitrail.nn.tap import Tap, TokenGrids
from vitrail.tasks.detection import explanation as explain_boxes
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.explaining import ExplainOptions, explain_files


class Looking(nn.Module):
    """Show a tap weights that were made up: of each query on two levels, or of places among themselves."""

    tap: Tap | None

    def __init__(self, kind: str, grids: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        self.kind, self.grids, self.tap = kind, grids, None

    def forward(self, num_queries: int) -> None:
        generator = torch.Generator().manual_seed(len(self.grids))
        if self.tap is None:
            return
        for grid in self.grids:
            queries = num_queries if self.kind == "cross" else grid[0] * grid[1]
            weights = torch.rand(1, 2, queries, grid[0] * grid[1], generator=generator)
            grids = TokenGrids(queries=None if self.kind == "cross" else grid, keys=grid)
            self.tap.take_weights(weights, kind=self.kind, grids=grids)


class LookingBoxes(BrightBoxes):
    """The detector of bright boxes with layers to look at."""

    def add(self, **layers: Looking) -> LookingBoxes:
        for name, layer in layers.items():
            self.add_module(name, layer)
        return self

    def forward(self, images: Tensor, sizes: Tensor | None = None, targets: object = None) -> DetectionOutput:
        output = super().forward(images, sizes)
        for layer in self.children():
            layer(output.boxes.shape[1])
        return output


def detector_with(**layers: Looking) -> Detector:
    loaded = bright_detector()
    return Detector(loaded._replace(model=LookingBoxes(loaded.model.config).add(**layers)))


@pytest.fixture(scope="module")
def detr() -> Detector:
    return Detector(small_detr())


def picture() -> Image.Image:
    return picture_with((64, 64), {0: (8, 16, 48, 40), 1: (32, 0, 64, 20)})


def test_rows_are_those_of_the_queries_that_answered_with_the_boxes(detr: Detector) -> None:
    image = noise((64, 48))
    pixels, _ = detr.read(image)

    explanation = detr.explain(image, threshold=0)

    with torch.inference_mode(), record_attention(detr.model) as maps:
        output = detr.model(detr.preprocessing.normalise(pixels[None]))
    crossing = [each for each in maps if each.kind == "cross"]
    sides = torch.tensor([64.0, 48.0, 64.0, 48.0])
    assert len(explanation.layers) == len(crossing) == 3
    assert len(explanation.answer.scores) == DETR["num_queries"]
    for place, corners in enumerate(explanation.answer.boxes_xyxy):
        distances = (output.boxes[0] - xyxy_to_cxcywh(corners / sides)).abs().amax(dim=-1)
        query = int(distances.argmin())
        expected = crossing[1].weights[0, 2, query]
        torch.testing.assert_close(explanation.attention(place, layer=2, head=3).flatten(), expected)
    mean = crossing[-1].weights[0].mean(dim=0)
    assert any(torch.allclose(explanation.attention(0).flatten(), row) for row in mean)


def test_boxes_are_those_of_a_detection(detr: Detector) -> None:
    image = noise((64, 48))
    (every,) = detr.detect(image, threshold=0)
    threshold = every.scores.sort().values.unfold(0, 2, 1).mean(dim=1).median().item()  # between two scores

    (found,) = detr.detect(image, threshold=threshold)
    explained = detr.explain(image, threshold=threshold).answer

    assert 0 < len(found.scores) < len(every.scores)
    torch.testing.assert_close(explained.boxes_xyxy, found.boxes_xyxy)
    assert torch.equal(explained.labels, found.labels)


def test_places_attend_in_the_encoder(detr: Detector) -> None:
    image = noise((64, 48))
    explanation = detr.explain(image)
    recorded = explanation.part("encoder").layers[-1]
    rows, columns = recorded.query_grid or (0, 0)

    looked = explanation.attention((0.99, 0.01), of="encoder", head=2)

    assert len(explanation.part("encoder").layers) == DETR["encoder_depth"]
    expected = recorded.weights[0, 1, (rows - 1) * columns].reshape(rows, columns)
    torch.testing.assert_close(looked, expected)
    assert looked.sum().item() == pytest.approx(1, abs=1e-5)


def test_the_best_box_is_explained_however_unsure(detr: Detector) -> None:
    explanation = detr.explain(noise((64, 48)), threshold=1)

    assert len(explanation.answer.scores) == 1
    assert explanation.answer.scores[0] < 1


def test_levels_of_a_layer_come_one_by_one_and_together() -> None:
    detector = detector_with(decoder=Looking("cross", ((4, 4), (2, 2))))

    explanation = detector.explain(picture())

    assert [each.layer for each in explanation.layers] == ["decoder, level 0", "decoder, level 1", "decoder"]
    assert [each.grid for each in explanation.layers] == [(4, 4), (2, 2), (4, 4)]
    fine, coarse = (
        each.weights[0, :, 1].mean(dim=0).unflatten(-1, each.grid) for each in explanation.layers[:2]
    )
    spread = coarse.repeat_interleave(2, 0).repeat_interleave(2, 1) / 4
    torch.testing.assert_close(explanation.attention(1), fine + spread)
    assert torch.equal(explanation.attention(1, layer=1), explanation.attention(1))
    assert [each.name for each in explanation.maps] == ["decoder"]
    assert "level 0 has the finest grid" in explanation.maps[0].note


def test_fine_grids_are_made_coarser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain_boxes, "LONGEST_DECODER_GRID", 3)
    monkeypatch.setattr(explain_boxes, "LONGEST_ENCODER_GRID", 2)
    layers = {"encoder": Looking("self", ((4, 5),)), "decoder": Looking("cross", ((5, 4),))}

    explanation = detector_with(**layers).explain(picture())

    assert (explanation.maps[1].layers[0].grid, explanation.maps[1].layers[0].query_grid) == ((2, 2), (2, 2))
    assert explanation.layers[0].grid == (3, 2)


def test_the_backbone_is_shown_only_where_no_encoder_attends() -> None:
    decoder, backbone = Looking("cross", ((2, 2),)), Looking("self", ((3, 3),))
    encoder = Looking("self", ((2, 2),))

    without = detector_with(backbone=backbone, decoder=decoder).explain(picture())
    beside = detector_with(backbone=backbone, encoder=encoder, decoder=decoder).explain(picture())

    assert [each.layer for each in without.part("encoder").layers] == ["backbone"]
    assert [each.layer for each in beside.part("encoder").layers] == ["encoder"]


@pytest.mark.parametrize("layers", [{}, {"encoder": Looking("self", ((2, 2),))}])
def test_a_model_whose_boxes_are_read_without_attention_is_refused(layers: dict[str, Looking]) -> None:
    with pytest.raises(ConfigError, match="bright_boxes, attends to an image"):
        detector_with(**layers).explain(picture())


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda each: each.attention(2), "no box 2"),
        (lambda each: each.attention(0, layer=2), "no layer 2"),
        (lambda each: each.attention(0, head=3), "no head 3 in decoder"),
        (lambda each: each.attention((0.5, 0.5), of="encoder"), "no part named 'encoder'"),
        (lambda each: each.attention((0.5, 1.5)), "lies outside of the image"),
    ],
)
def test_choices_that_do_not_exist_are_refused(choose: object, message: str) -> None:
    explanation = detector_with(decoder=Looking("cross", ((2, 2),))).explain(picture())

    with pytest.raises(ConfigError, match=message):
        choose(explanation)  # type: ignore[operator]


def test_pictures_show_the_box_and_its_attention(tmp_path: Path) -> None:
    explanation = detector_with(decoder=Looking("cross", ((2, 2),))).explain(picture())

    overlay = explanation.overlay(1)
    explanation.save(tmp_path / "sheet.png")

    assert overlay.size == (384, 384)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width == 3 * 384 + 6  # all boxes, and each of two; their colours below
        assert sheet.height > 384
        tiles = [np.asarray(sheet)[:384, start : start + 384] for start in (0, 387, 774)]
    assert not np.array_equal(tiles[0], tiles[2])
    assert not np.array_equal(tiles[1], tiles[2])
    with pytest.raises(ConfigError, match="no suffix of a known format"):
        explanation.save(tmp_path / "sheet.xyz")


def test_files_are_explained_on_one_page_or_each_in_a_picture(tmp_path: Path) -> None:
    detector = detector_with(decoder=Looking("cross", ((2, 2),)))
    for name in ("one", "two"):
        picture().save(tmp_path / f"{name}.png")
    names = [tmp_path / "one.png", tmp_path / "missing.png", tmp_path / "two.png"]

    page = explain_files(detector.explain, names, ExplainOptions(output=tmp_path / "out.html"))
    folder = explain_files(detector.explain, names, ExplainOptions(output=tmp_path / "out"))

    text = (tmp_path / "out.html").read_text()
    assert page.files == (tmp_path / "out.html",)
    assert all(name in text for name in ("one.png", "two.png", *NAMES[:2]))
    assert [path.name for path in folder.files] == ["one.png", "two.png"]
    assert [Path(name).name for name, _ in folder.errors] == ["missing.png"]
    with pytest.raises(DataError, match=r"missing\.png does not exist"):
        explain_files(
            detector.explain, [tmp_path / "missing.png"], ExplainOptions(output=tmp_path / "none.html")
        )
    with pytest.raises(ConfigError, match="one for a picture"):
        explain_files(detector.explain, names, ExplainOptions(output=tmp_path / "out.png"))
