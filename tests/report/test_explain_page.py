from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.report import explain_page
from vitrail.report.explain_page import ExplainedAttention, write_explain_page

EVIL = "</script><!--<script>alert(1)"


def toy_attention(name: str = EVIL) -> ExplainedAttention:
    generator = torch.Generator().manual_seed(4)
    patches = torch.rand(2, 3, 10, 10, generator=generator)
    return ExplainedAttention(
        name=name,
        picture=Image.new("RGB", (20, 8), (1, 2, 3)),
        overlay=Image.new("RGB", (20, 8)),
        scores=[("cat", 0.75), (EVIL, 0.25)],
        layer_names=["first", "second"],
        reader_name="mean over patches",
        read=patches.mean(-2).reshape(2, 3, 2, 5),
        read_rollout=torch.rand(2, 5, generator=generator),
        patches=patches,
        patches_rollout=torch.rand(10, 10, generator=generator),
    )


def data_of(path: Path) -> dict:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL
    )
    assert found is not None
    return json.loads(found.group(1))


def decode(text: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)


def test_rows_are_stored_from_their_smallest_to_their_largest_value(tmp_path: Path) -> None:
    image = toy_attention()

    write_explain_page(tmp_path / "out.html", [image])

    stored = decode(data_of(tmp_path / "out.html")["images"][0]["patches"]).reshape(2, 4, 10, 10)
    rows = image.patches[1, 2].numpy()
    low, high = rows.min(-1, keepdims=True), rows.max(-1, keepdims=True)
    np.testing.assert_allclose(stored[1, 3], (rows - low) / (high - low) * 255, atol=0.51)
    assert (stored.max(-1) == 255).all()
    assert (stored.min(-1) == 0).all()


def test_first_head_is_the_mean(tmp_path: Path) -> None:
    image = toy_attention()

    write_explain_page(tmp_path / "out.html", [image])

    stored = decode(data_of(tmp_path / "out.html")["images"][0]["read"]).reshape(2, 4, 10)
    mean = image.read.flatten(-2).mean(1).numpy()
    np.testing.assert_array_equal(stored[:, 0].argmax(-1), mean.argmax(-1))


def test_names_cannot_end_the_script_that_holds_them(tmp_path: Path) -> None:
    write_explain_page(tmp_path / "out.html", [toy_attention()])

    text = (tmp_path / "out.html").read_text()
    assert data_of(tmp_path / "out.html")["images"][0]["name"] == EVIL
    assert text.count("<script") == text.count("</script>") == 2
    assert "<!--" not in text


def test_single_heads_are_left_out_where_they_are_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain_page, "MAX_PATCH_BYTES", 500)

    write_explain_page(tmp_path / "out.html", [toy_attention()])

    image = data_of(tmp_path / "out.html")["images"][0]
    assert not image["hasHeads"]
    assert decode(image["patches"]).size == 2 * 1 * 10 * 10
    assert decode(image["read"]).size == 2 * 4 * 10


def test_page_names_no_other_place(tmp_path: Path) -> None:
    write_explain_page(tmp_path / "out.html", [toy_attention("a.png"), toy_attention("b.png")])

    text = (tmp_path / "out.html").read_text()
    assert "http" not in text
    assert [image["name"] for image in data_of(tmp_path / "out.html")["images"]] == ["a.png", "b.png"]
