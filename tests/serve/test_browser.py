"""The page in a real browser: an image is dropped and its answer read; a sentence is typed."""

from __future__ import annotations

import base64
import io
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from making.colour_clip import COLOURS
from making.explanations import EVERY, of_text
from making.served_models import picture, running, small_classifier, small_models
from making.small_models import small_captioner
from making.small_translators import ENGLISH
from vitrail.interpret.viewer.explanation import BeamEntry
from vitrail.interpret.viewer.page import explanations_html
from vitrail.tasks.captioning.predictor import Captioner
from vitrail.tasks.classification.predictor import Predictor

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS = 60_000  # for a loaded machine
# What a browser does when a file is dropped on the page.
DROP = """([name, type, content]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], name, { type }));
  document.getElementById("drop").dispatchEvent(
    new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: carried }));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=found, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(small_models(), max_upload_mb=1) as (address, _):
        yield address


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of its own that fails the test for an error of its scripts, or a request to elsewhere."""
    opened = browser.new_page(viewport={"width": 1100, "height": 900})
    opened.set_default_timeout(WAIT_MS)
    errors: list[str] = []
    messages: list[str] = []
    requests: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: messages.append(message.text))
    opened.on("request", lambda request: requests.append(request.url))
    yield opened
    opened.close()
    assert errors == []
    assert not [text for text in messages if "Content Security" in text]
    assert not [url for url in requests if not url.startswith(("http://127.0.0.1", "data:", "blob:"))]


def drop(page: Any, content: bytes, name: str = "noise.png") -> None:
    page.evaluate(DROP, [name, "image/png", base64.b64encode(content).decode()])


def test_a_dropped_image_is_classified_and_explained(page: Any, url: str) -> None:
    page.goto(f"{url}/?model=colours")
    drop(page, picture(8))

    page.wait_for_selector("#result:not([hidden]) #scores tr")
    rows = page.locator("#scores tr").all_inner_texts()
    shown = {row.split("\t")[0].strip(): float(row.split("\t")[1].strip().rstrip("%")) for row in rows}
    (expected,) = Predictor(small_classifier()).predict(Image.open(io.BytesIO(picture(8))), top=3)
    assert shown == pytest.approx({name: 100 * share for name, share in expected.scores}, abs=0.06)
    assert page.inner_text("#name") == "noise.png"

    # From patch to patch by keyboard, then one layer's head by a click on its tile.
    page.focus("#view")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#state").startswith("patch in row")
    assert page.inner_text("#reader") == "chosen patch"
    page.locator("#sheet button").nth(4).click()
    assert "head 1" in page.inner_text("#state")
    assert page.locator("#sheet button[aria-pressed=true]").count() == 1


def test_each_class_can_be_asked_what_speaks_for_it(page: Any, url: str) -> None:
    page.goto(f"{url}/?model=colours")
    drop(page, picture(8))
    page.wait_for_selector("#result:not([hidden]) #scores button")
    last = page.locator("#scores button").last
    name = last.inner_text()

    last.press("Enter")

    page.locator("#state", has_text=f"relevance: evidence for {name}").wait_for()
    assert page.locator("#scores button:focus").inner_text() == name


def test_hovering_over_a_patch_changes_every_tile(page: Any, url: str) -> None:
    page.goto(f"{url}/?model=colours")
    drop(page, picture(9))
    page.wait_for_selector("#result:not([hidden]) #sheet canvas")
    tiles = "[...document.querySelectorAll('#sheet canvas')].map((each) => each.toDataURL()).join()"
    of_reader = page.evaluate(tiles)

    box = page.locator("#view").bounding_box()  # whose middle is that of a grid of 3 rows and 2 columns
    page.hover("#view", position={"x": box["width"] / 2 + 40, "y": box["height"] / 2})

    page.locator("#state", has_text="patch in row 2, column 2").wait_for()
    assert page.evaluate(tiles) != of_reader


@pytest.mark.parametrize("kind", EVERY)
def test_every_view_of_an_explanation_can_be_looked_through(page: Any, kind: str) -> None:
    page.set_content(explanations_html([EVERY[kind]("one"), EVERY[kind]("two")]))
    page.wait_for_function("document.getElementById('state').textContent")
    canvas = "#map" if kind == "text" else "#view"

    for view in range(page.locator("#views input").count()):
        page.locator("#views input").nth(view).check()
        page.locator("#sheet button").last.click()
        assert page.locator("#sheet button[aria-pressed=true]").count() == 1
        before = page.inner_text("#state")
        page.focus(canvas)
        page.keyboard.press("ArrowLeft")
        assert page.inner_text("#state") != before
    page.locator("#chooser button").last.click()
    page.locator("#name", has_text="two").wait_for()


def test_what_is_no_image_is_said_to_be_none(page: Any, url: str) -> None:
    page.goto(f"{url}/?model=colours")
    drop(page, b"Dear reader")

    page.wait_for_selector("#problem:not([hidden])")
    assert "not an image" in page.inner_text("#problem")
    drop(page, picture(8))
    page.wait_for_selector("#result:not([hidden]) #scores tr")
    assert page.locator("#problem").is_hidden()


def test_a_detector_without_attention_shows_its_boxes(page: Any, url: str) -> None:
    page.goto(f"{url}/?model=boxes")
    drop(page, picture(10))

    page.wait_for_selector("#quick:not([hidden])")
    page.locator("#answer", has_text="boxes").wait_for()


def test_a_caption_is_written_and_each_word_shown(page: Any, url: str) -> None:
    page.goto(f"{url}/?model=says")
    drop(page, picture(8))

    page.wait_for_selector("#result:not([hidden]) #queries button")
    (expected,) = Captioner(small_captioner()).predict(Image.open(io.BytesIO(picture(8))))
    words = page.locator("#queries button").all_inner_texts()
    assert " ".join(words[:-1]) == expected.text
    page.focus("#view")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#state").startswith(words[-1])


def test_names_are_compared_as_they_are_typed(page: Any, url: str) -> None:
    page.goto(f"{url}/?model=any")
    encoded = io.BytesIO()
    Image.new("RGB", (24, 16), COLOURS["green"]).save(encoded, "PNG")
    drop(page, encoded.getvalue())
    page.locator("#answer", has_text="names").wait_for()

    page.fill("#labels", "red, green")

    page.wait_for_selector("#result:not([hidden]) #scores tr")
    assert page.locator("#scores tr").first.inner_text().startswith("green")
    assert page.locator("#scores tr").count() == 2


def test_a_typed_sentence_is_translated_and_aligned(page: Any, url: str) -> None:
    page.goto(f"{url}/?model=en-de")
    page.fill("#typed", ENGLISH[0])

    page.wait_for_selector("#result:not([hidden]) #map image")
    pieces = page.locator("#keys span").all_inner_texts()
    assert "".join(pieces).replace("\u00b7", "").startswith("Adogruns")
    assert page.inner_text("#answer")

    page.fill("#typed", "")
    page.wait_for_selector("#result[hidden]", state="attached")


def test_models_are_changed_by_keyboard(page: Any, url: str) -> None:
    page.goto(url)
    page.select_option("#model", "en-de")

    page.wait_for_selector("#typed")
    assert page.inner_text("h1") == "en-de"


@pytest.mark.parametrize("width", [360, 1100])
@pytest.mark.parametrize("model", ["colours", "boxes", "en-de"])
def test_the_page_fits_from_phone_to_desktop(page: Any, url: str, width: int, model: str) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    page.goto(f"{url}/?model={model}")
    if model == "en-de":
        page.fill("#typed", ENGLISH[3])
        page.wait_for_selector("#result:not([hidden])")
    else:
        drop(page, picture(8))
        page.wait_for_selector("#result:not([hidden])" if model == "colours" else "#quick:not([hidden])")

    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_interface_is_shown(page: Any, url: str) -> None:
    page.goto(f"{url}/docs")

    page.wait_for_selector("#operations section")
    assert page.locator("#operations section").count() == 6
    assert "/predict" in page.inner_text("#operations")


def test_a_translation_plays_word_by_word_with_its_beam(page: Any) -> None:
    text = of_text("one")
    beams = tuple(
        (BeamEntry("other", -1.0, False, False), BeamEntry(words, -2.5, ended, True))
        for words, ended in (("Ein", False), ("Ein Hund", False), ("Ein Hund", True))
    )
    page.clock.install()
    maps = (replace(text.maps[0], steps=(0, 1, 2)), *text.maps[1:])
    page.set_content(explanations_html([replace(text, maps=maps, beams=beams)]))
    page.wait_for_selector("#map image")
    words, curtain = (
        page.locator("#queries button:visible"),
        page.locator("#map .curtain[visibility=visible]"),
    )
    assert page.locator("#beam").is_hidden()

    page.click("#play")

    height = float(curtain.get_attribute("height"))
    assert words.count() == 1
    assert page.locator("#beam li").all_inner_texts() == ["other-1.00", "Ein-2.50"]
    page.clock.run_for(1000)
    assert words.count() == 2
    assert float(curtain.get_attribute("height")) < height
    assert page.locator("#beam .chosen").inner_text() == "Ein Hund-2.50"
    page.clock.run_for(2000)
    assert (words.count(), curtain.count()) == (3, 0)
    assert page.locator("#beam .chosen").inner_text() == "Ein Hundended, -2.50"
    page.clock.run_for(2000)
    assert page.inner_text("#play") == "Play the words"
    page.locator("#views input").nth(1).check()  # whose rows nobody generated
    assert page.locator("#play").is_hidden()
