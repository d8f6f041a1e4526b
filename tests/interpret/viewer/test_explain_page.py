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

from vitrail.interpret.viewer import explain_page
from vitrail.interpret.viewer.explain_page import ExplainedAttention, ExplainedLayer, write_explain_page

EVIL = "</script><!--<script>alert(1)"


def toy_layer(
    name: str, heads: int, queries: tuple[int, int], keys: tuple[int, int], seed: int
) -> ExplainedLayer:
    generator = torch.Generator().manual_seed(seed)
    patches = torch.rand(heads, queries[0] * queries[1], keys[0] * keys[1], generator=generator)
    read = patches.mean(-2).reshape(heads, *keys)
    return ExplainedLayer(
        name=name, reader_name="mean over patches", read=read, patches=patches, query_grid=queries
    )


def toy_attention(name: str = EVIL) -> ExplainedAttention:
    layers = [toy_layer(each, 3, (2, 5), (2, 5), seed) for seed, each in enumerate(("first", "second"))]
    return ExplainedAttention(
        name=name,
        picture=Image.new("RGB", (20, 8), (1, 2, 3)),
        overlay=Image.new("RGB", (20, 8)),
        scores=[("cat", 0.75), (EVIL, 0.25)],
        layers=layers,
        rollout=toy_layer("rollout", 1, (2, 5), (2, 5), 4),
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

    layer = data_of(tmp_path / "out.html")["images"][0]["layers"][1]
    stored = decode(layer["heads"]).reshape(3, 10, 10)
    rows = image.layers[1].patches[2].numpy()
    low, high = rows.min(-1, keepdims=True), rows.max(-1, keepdims=True)
    np.testing.assert_allclose(stored[2], (rows - low) / (high - low) * 255, atol=0.51)
    assert (stored.max(-1) == 255).all()
    assert (stored.min(-1) == 0).all()


def test_means_over_heads_stand_beside_the_heads(tmp_path: Path) -> None:
    image = toy_attention()

    write_explain_page(tmp_path / "out.html", [image])

    layer = data_of(tmp_path / "out.html")["images"][0]["layers"][0]
    patches, read = image.layers[0].patches, image.layers[0].read.flatten(-2)
    np.testing.assert_array_equal(
        decode(layer["mean"]).reshape(10, 10).argmax(-1), patches.mean(0).numpy().argmax(-1)
    )
    assert decode(layer["readMean"]).argmax() == read.mean(0).argmax().item()
    np.testing.assert_array_equal(
        decode(layer["readHeads"]).reshape(3, 10).argmax(-1), read.numpy().argmax(-1)
    )


def test_each_layer_has_its_own_grids_and_heads_and_rollout_may_be_missing(tmp_path: Path) -> None:
    layers = [toy_layer("fine", 1, (4, 6), (2, 3), 0), toy_layer("coarse", 2, (2, 3), (4, 6), 1)]

    write_explain_page(tmp_path / "out.html", [replace(toy_attention("a"), layers=layers, rollout=None)])

    image = data_of(tmp_path / "out.html")["images"][0]
    assert image["rollout"] is None
    assert [layer["queryGrid"] for layer in image["layers"]] == [[4, 6], [2, 3]]
    assert [layer["grid"] for layer in image["layers"]] == [[2, 3], [4, 6]]
    assert [layer["numHeads"] for layer in image["layers"]] == [1, 2]
    assert [decode(layer["heads"]).size for layer in image["layers"]] == [24 * 6, 2 * 6 * 24]
    assert "a: attention of the last layer" in (tmp_path / "out.html").read_text()


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

    for layer in data_of(tmp_path / "out.html")["images"][0]["layers"]:
        assert layer["heads"] is None
        assert decode(layer["mean"]).size == 10 * 10
        assert decode(layer["readHeads"]).size == 3 * 10


def test_page_names_no_other_place(tmp_path: Path) -> None:
    write_explain_page(tmp_path / "out.html", [toy_attention("a.png"), toy_attention("b.png")])

    text = (tmp_path / "out.html").read_text()
    assert "http" not in text
    assert [image["name"] for image in data_of(tmp_path / "out.html")["images"]] == ["a.png", "b.png"]
