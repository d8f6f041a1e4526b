from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.interpret.viewer import box_explain_page
from vitrail.interpret.viewer.box_explain_page import (
    BoxLayer,
    ExplainedBox,
    ExplainedDetections,
    write_box_explain_page,
)

EVIL = "</script><!--<script>alert(1)"


def toy_layer(name: str, queries: int, grid: tuple[int, int], query_grid: tuple[int, int] | None) -> BoxLayer:
    generator = torch.Generator().manual_seed(queries)
    weights = torch.rand(3, queries, grid[0] * grid[1], generator=generator)
    return BoxLayer(name=name, weights=weights, grid=grid, query_grid=query_grid)


def toy_detections(name: str = EVIL) -> ExplainedDetections:
    boxes = [
        ExplainedBox(corners=(0.1, 0.25, 0.5, 1.0), text=f"{EVIL} 0.75", label=0),
        ExplainedBox(corners=(0.0, 0.0, 1.0, 0.5), text="cat 0.50", label=1),
    ]
    return ExplainedDetections(
        name=name,
        picture=Image.new("RGB", (20, 8), (1, 2, 3)),
        still=Image.new("RGB", (20, 8)),
        boxes=boxes,
        box_layers=[toy_layer("first", 2, (2, 5), None), toy_layer("second", 2, (1, 3), None)],
        place_layers=[toy_layer("encoder", 6, (2, 3), (3, 2))],
    )


def data_of(path: Path) -> dict:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL
    )
    assert found is not None
    return json.loads(found.group(1))


def decode(text: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)


def test_levels_are_explained_where_there_are_any(tmp_path: Path) -> None:
    levelled = replace(
        toy_detections(),
        box_layers=[toy_layer("first, level 0", 2, (2, 5), None), toy_layer("first", 2, (2, 5), None)],
    )
    for image, expected in ((toy_detections(), 0), (levelled, 1)):
        write_box_explain_page(tmp_path / "out.html", [image])
        assert (tmp_path / "out.html").read_text().count("level 0 has the finest cells") == expected


def test_every_box_has_a_row_in_every_layer_and_head(tmp_path: Path) -> None:
    image = toy_detections()

    write_box_explain_page(tmp_path / "out.html", [image])

    (data,) = data_of(tmp_path / "out.html")["images"]
    layer = data["boxLayers"][1]
    rows = image.box_layers[1].weights.numpy()
    low, high = rows.min(-1, keepdims=True), rows.max(-1, keepdims=True)
    stored = decode(layer["heads"]).reshape(3, 2, 3)
    np.testing.assert_allclose(stored, (rows - low) / (high - low) * 255, atol=0.51)
    assert (layer["grid"], layer["queryGrid"], layer["numHeads"]) == ([1, 3], None, 3)
    place = data["placeLayers"][0]
    assert decode(place["mean"]).reshape(6, 6).argmax(-1).tolist() == (
        image.place_layers[0].weights.mean(0).argmax(-1).tolist()
    )
    assert place["queryGrid"] == [3, 2]


def test_boxes_are_told_with_place_text_and_colour(tmp_path: Path) -> None:
    write_box_explain_page(tmp_path / "out.html", [toy_detections()])

    (data,) = data_of(tmp_path / "out.html")["images"]
    assert data["boxes"][0] == {
        "corners": [0.1, 0.25, 0.5, 1.0],
        "text": f"{EVIL} 0.75",
        "colour": "#56b4e9",
    }
    assert data["boxes"][1]["colour"] != data["boxes"][0]["colour"]


def test_names_cannot_become_code(tmp_path: Path) -> None:
    write_box_explain_page(tmp_path / "out.html", [toy_detections()], title=EVIL)

    text = (tmp_path / "out.html").read_text()
    assert "<script>alert" not in text
    assert text.count("<script") == text.count("</script>") == 2


def test_heads_that_take_too_much_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_explain_page, "MAX_BYTES", 60)

    write_box_explain_page(tmp_path / "out.html", [toy_detections()])

    (data,) = data_of(tmp_path / "out.html")["images"]
    assert data["boxLayers"][0]["heads"] is None
    assert len(decode(data["boxLayers"][0]["mean"])) == 2 * 10


def test_a_model_without_an_encoder_has_no_places(tmp_path: Path) -> None:
    image = toy_detections()
    without = ExplainedDetections(**{**vars(image), "place_layers": ()})

    write_box_explain_page(tmp_path / "out.html", [without])

    assert data_of(tmp_path / "out.html")["images"][0]["placeLayers"] == []


def test_the_page_stands_alone(tmp_path: Path) -> None:
    write_box_explain_page(tmp_path / "out.html", [toy_detections("photo"), toy_detections("other")])

    text = (tmp_path / "out.html").read_text()
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    assert text.index("photo") < text.index("other")
