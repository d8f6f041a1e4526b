"""The page of explanations: what it stores of every task's maps, what it drops, and that it stands alone."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import replace

import numpy as np
import pytest

from making.explanations import EVERY, EVIL, SOURCE, WRITTEN, of_boxes, of_image, of_text
from vitrail.interpret.viewer import page
from vitrail.interpret.viewer.explanation import BeamEntry, Explanation
from vitrail.interpret.viewer.page import explanations_html, roots


def stored(*explanations: Explanation) -> list[dict]:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>',
        explanations_html(explanations),
        re.DOTALL,
    )
    assert found is not None
    return json.loads(found.group(1))["explanations"]


def decode(text: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)


@pytest.mark.parametrize("kind", EVERY)
def test_every_layer_and_head_is_stored(kind: str) -> None:
    given = EVERY[kind]()

    (data,) = stored(given)

    parts = given.parts_on_page
    assert [view["name"] for view in data["views"]] == [part.name for part in parts]
    for view, part in zip(data["views"], parts, strict=True):
        assert view["queries"]["kind"] == part.queries.kind
        assert view["keys"]["kind"] == part.keys.kind
        for layer, recorded in zip(view["layers"], part.shown, strict=True):
            weights = recorded.weights[0].numpy()
            assert layer["numHeads"] == len(weights)
            for name, values in (("mean", weights.mean(0)), ("heads", weights)):
                if (part.name, name) == ("rollout", "heads"):  # whose one head is its mean
                    continue
                found = decode(layer[name]).reshape(values.shape)
                if part.keys.kind == "tokens":
                    np.testing.assert_array_equal(found, roots(values))
                else:
                    assert_times_even(found, layer["tops"][name], values)


def assert_times_even(found: np.ndarray, top: float, weights: np.ndarray) -> None:
    """Compare stored logarithms with multiples of even attention; half a step of 255 is rounding."""
    expected = np.maximum(weights / weights.mean(axis=-1, keepdims=True), 1)
    np.testing.assert_allclose(2 ** (found / 255.0 * top), expected, rtol=2 ** (0.51 * top / 255) - 1 + 1e-5)


def test_maps_are_stored_in_multiples_of_even_attention() -> None:
    given = of_image()

    (data,) = stored(given)

    layer, weights = data["views"][1]["layers"][1], given.layers[1].weights[0].numpy()
    read = weights.mean(axis=1)  # heads keys
    assert_times_even(decode(layer["readHeads"]).reshape(3, 10), layer["tops"]["readHeads"], read)
    assert_times_even(decode(layer["readMean"]), layer["tops"]["readMean"], read.mean(axis=0))
    assert layer["reader"] == "mean over patches"
    assert data["crop"] == [0, 0, 1, 1]


def test_a_page_begins_with_the_layer_and_head_that_were_named() -> None:
    (data,) = stored(of_image().showing(layer=-2, head=2))

    view = data["views"][data["first"]]
    assert (view["name"], view["first"], view["firstHead"]) == ("attention", 0, 2)


def test_weights_between_tokens_keep_their_digits() -> None:
    small = np.array([[0.004, 0.001, 0.995, 0.0]], dtype=np.float32)
    np.testing.assert_allclose((roots(small)[0] / 255.0) ** 2, small[0], rtol=0.07)
    given = of_text()

    layer = stored(given)[0]["views"][0]["layers"][1]

    # Half a step of the root, 1 / 510, is at most so much of the weight.
    weights = (decode(layer["heads"]) / 255.0) ** 2
    np.testing.assert_allclose(weights, given.layers[1].weights[0].numpy().ravel(), atol=0.0041)


def test_each_layer_has_its_own_grid_and_a_pyramid_has_no_rollout() -> None:
    (data,) = stored(of_image("a", is_pyramid=True))

    (view,) = data["views"]
    assert [layer["queryGrid"] for layer in view["layers"]] == [[4, 6], [2, 3]]
    assert [layer["grid"] for layer in view["layers"]] == [[4, 6], [2, 3]]
    assert [layer["numHeads"] for layer in view["layers"]] == [3, 2]
    assert "there is no rollout" in view["note"]
    assert [layer["title"] for layer in view["layers"]] == ["layer 1, attention", "layer 2, attention"]


def test_what_is_shown_first_is_told() -> None:
    image, text = stored(of_image(), of_text())

    assert image["views"][image["first"]]["title"] == "all layers combined (rollout)"
    assert (text["first"], text["views"][0]["first"], text["views"][0]["note"]) == (0, 1, "the sharpest")
    assert image["scores"] == [["cat", 0.75], [EVIL, 0.25]]


def test_sides_are_told_with_their_texts_places_and_colours() -> None:
    (boxes,), (text,) = stored(of_boxes()), stored(of_text())

    queries = boxes["views"][0]["queries"]
    assert queries["corners"][0] == [0.1, 0.25, 0.5, 1.0]
    assert queries["texts"][0] == f"{EVIL} 0.75"
    assert queries["colours"][0] == "#56b4e9"
    assert queries["colours"][1] != queries["colours"][0]
    assert [view["keys"]["texts"] for view in text["views"]] == [
        list(SOURCE),
        list(SOURCE),
        ["<s>", *WRITTEN[:-1]],
    ]
    assert [view["name"] for view in stored(of_boxes(has_encoder=False))[0]["views"]] == ["decoder"]


@pytest.mark.parametrize("kind", EVERY)
def test_single_heads_are_what_is_dropped_for_size(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = EVERY[kind]()
    monkeypatch.setattr(page, "MAX_BYTES", 60)

    (data,) = stored(given)

    for view, part in zip(data["views"], given.parts_on_page, strict=True):
        for layer, recorded in zip(view["layers"], part.shown, strict=True):
            assert layer["heads"] is None
            assert decode(layer["mean"]).size == recorded.weights[0, 0].numel()
            if part.reader is not None:
                assert decode(layer["readHeads"]).size == recorded.weights[0, :, 0].numel()


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("count", [1, 2])
def test_the_page_stands_alone_and_no_text_becomes_code(kind: str, count: int) -> None:
    text = explanations_html([EVERY[kind](), EVERY[kind]("other")][:count])

    assert text.count("<script") == text.count("</script>") == 2
    assert "<script>alert" not in text
    assert "<!--" not in text
    targets = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(target.startswith(("data:image/", "#")) for target in targets)
    still = text[text.index("<noscript>") : text.index("</noscript>")]
    assert still.count("<figure>") == count
    assert still.count("<svg") == (count if kind == "text" else 0)
    names = re.findall(r'\bid="([^"]*)"', text)
    assert len(names) == len(set(names))


def test_a_notebook_shows_the_page() -> None:
    shown = of_image("a")._repr_html_()

    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert shown.count("<iframe") == 1


def test_the_beam_is_stored_with_the_step_of_each_row() -> None:
    text = of_text()
    beam = (BeamEntry("Ein", -0.256, is_finished=False, is_chosen=True), BeamEntry("", -2.0, True, False))
    cross = replace(text.maps[0], steps=(0, 1, 2))

    (data,) = stored(replace(text, maps=(cross, *text.maps[1:]), beams=(beam,)))

    assert data["beams"] == [[["Ein", -0.26, False, True], ["", -2.0, True, False]]]
    assert [view["steps"] for view in data["views"]] == [[0, 1, 2], [], []]
