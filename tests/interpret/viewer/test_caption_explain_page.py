"""The page of explained captions: complete, self-contained, and safe for any text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from PIL import Image

from vitrail.interpret.viewer.caption_explain_page import (
    CaptionLayer,
    ExplainedCaption,
    image_data,
    write_caption_explain_page,
)

WORDS = ("a", "<b>dog</b>", "(end)")


def explained(name: str = "x.png") -> ExplainedCaption:
    picture = Image.new("RGB", (30, 20), "teal")
    weights = torch.rand(2, 3, 6, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    layers = [
        CaptionLayer(name="decoder.0", weights=weights, grid=(2, 3)),
        CaptionLayer(name="decoder.1", weights=weights[:1], grid=(3, 2)),
    ]
    return ExplainedCaption(
        name=name, picture=picture, still=picture, caption="a <b>dog</b>", words=WORDS, layers=layers
    )


def test_the_page_holds_every_word_and_layer_and_no_markup_of_them(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_caption_explain_page(path, [explained(), explained("</script>.png")], title="Two <captions>")
    page = path.read_text()
    assert "Two &lt;captions&gt;" in page
    assert "<b>dog</b>" not in page
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert [image["words"] for image in data["images"]] == [list(WORDS)] * 2
    assert [layer["numHeads"] for layer in data["images"][0]["layers"]] == [2, 1]
    assert not re.search(r'(src|href)="http', page)


def test_heads_are_left_out_where_they_take_too_much() -> None:
    assert image_data(explained())["layers"][0]["heads"] is not None  # type: ignore[index]
    assert image_data(explained(), max_bytes=20)["layers"][0]["heads"] is None  # type: ignore[index]
