"""Requests and their answers: of each kind of model, in each form, and every refusal with what to do."""

from __future__ import annotations

import base64
import io
import tracemalloc
import zlib
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from making.bright_boxes import picture_with
from making.colour_clip import COLOURS
from making.served_models import NAMES, picture, png_bomb, small_classifier, small_models
from making.small_models import small_captioner
from making.small_translators import ENGLISH, small_translator
from vitrail.serve import uploads
from vitrail.serve.app import create_app
from vitrail.serve.hosting import Hosting
from vitrail.serve.settings import ServeSettings
from vitrail.tasks.captioning.predictor import Captioner
from vitrail.tasks.classification.predictor import Predictor
from vitrail.tasks.translation.predictor import Translator

JSON = "application/json"


AS_JSON, AS_TEXT, AS_PNG = ({"content-type": kind} for kind in (JSON, "text/plain", "image/png"))
FILE = {"files": {"image": picture()}}


def in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def encode(image: Image.Image) -> bytes:
    encoded = io.BytesIO()
    image.save(encoded, format="PNG")
    return encoded.getvalue()


def scores_of(answer: Any, place: int = 0) -> dict[str, float]:
    assert answer.status_code == 200, answer.text
    return {each["class"]: each["probability"] for each in answer.json()["results"][place]["scores"]}


def refused(answer: Any, status: int, *parts: str) -> dict[str, Any]:
    """Check that an answer is an error as all are, and return it."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"status", "message", "given", "expected", "remedy"}
    assert error["status"] == status
    for part in parts:
        assert part in error["message"]
    return error


@pytest.mark.parametrize("how", ["body", "octets", "form", "json", "url", "list"])
def test_images_in_every_form_get_the_classes_of_the_predictor(client: TestClient, how: str) -> None:
    content = picture(1)
    ask = {"params": {"model": "colours"}}
    forms: dict[str, dict[str, Any]] = {
        "body": {"content": content, "headers": AS_PNG},
        "octets": {"content": content, "headers": {"content-type": "application/octet-stream"}},
        "form": {"files": {"image": ("a.png", content)}},
        "json": {"json": {"image": in_base64(content)}},
        "url": {"json": {"image": "data:image/png;base64," + in_base64(content)}},
        "list": {"json": {"images": [in_base64(content)]}},
    }

    answer = client.post("/predict", **ask, **forms[how])

    (expected,) = Predictor(small_classifier()).predict(Image.open(io.BytesIO(content)), top=3)
    assert answer.json()["model"] == "colours"
    assert scores_of(answer) == pytest.approx(dict(expected.scores), rel=1e-4)


def test_options_are_read_from_address_form_and_json(client: TestClient) -> None:
    content = picture(2)

    answers = [
        client.post("/predict?model=colours&top=2", files={"image": content}),
        client.post("/predict", files={"image": content}, data={"model": "colours", "top": "2"}),
        client.post("/predict", json={"image": in_base64(content), "model": "colours", "top": 2}),
    ]

    for answer in answers:
        assert len(scores_of(answer)) == 2


def test_a_list_is_answered_in_order_with_errors_in_their_places(client: TestClient) -> None:
    images = [picture(3), b"no image", picture(4)]

    answer = client.post(
        "/predict?model=colours", files=[("images", (f"{i}.png", each)) for i, each in enumerate(images)]
    )

    results = answer.json()["results"]
    assert answer.status_code == 200
    assert [each["source"] for each in results] == ["0.png", "1.png", "2.png"]
    assert results[1]["error"]["status"] == 422
    for place in (0, 2):
        alone = client.post("/predict?model=colours", files={"image": images[place]})
        assert scores_of(answer, place) == pytest.approx(scores_of(alone), rel=1e-4)


def test_boxes_of_a_detector_lie_in_the_image_that_was_sent(client: TestClient) -> None:
    content = encode(picture_with((90, 120), {0: (10, 20, 50, 80)}))

    answer = client.post("/predict?model=boxes&threshold=0.4", content=content, headers=AS_PNG)

    (result,) = answer.json()["results"]
    (box,) = result["boxes"]
    assert (result["height"], result["width"], box["class"]) == (90, 120, "red")
    assert box["box_xyxy"] == pytest.approx([10, 20, 50, 80], abs=3)


def test_texts_are_translated_as_by_the_translator(client: TestClient) -> None:
    answer = client.post("/predict", json={"model": "en-de", "texts": list(ENGLISH[:3])})
    plain = client.post("/predict?model=en-de", content=ENGLISH[0].encode(), headers=AS_TEXT)

    expected = [each.text for each in Translator(small_translator()).translate(ENGLISH[:3])]
    assert [each["text"] for each in answer.json()["results"]] == expected
    assert plain.json()["results"][0]["text"] == expected[0]


def test_a_request_chooses_the_search(client: TestClient) -> None:
    search = {"beam_size": 3, "length_penalty": 0.6, "penalty_form": "gnmt", "num_best": 2}
    answer = client.post("/predict", json={"model": "en-de", "text": ENGLISH[0], **search})

    (expected,) = Translator(small_translator()).translate(ENGLISH[:1], **search)
    assert answer.json()["results"] == [expected.to_json()]


def test_images_are_captioned_as_by_the_captioner_and_given_captions_explained(client: TestClient) -> None:
    answer = client.post("/predict?model=says&beam_size=3&num_best=2", files={"image": picture(8)})

    (result,) = answer.json()["results"]
    captioner = Captioner(small_captioner())
    (expected,) = captioner.predict(Image.open(io.BytesIO(picture(8))), beam_size=3, num_best=2)
    assert result["caption"] == expected.text
    assert result["score"] == pytest.approx(expected.score, abs=1e-5)
    assert len(result["alternatives"]) == 1

    given = {"model": "says", "target": "a red dog"}
    answer = client.post("/explain", files={"image": picture(8)}, data=given)
    (view,) = answer.json()["explanation"]["views"]
    assert view["queries"]["texts"] == ["a", "red", "dog", "(end)"]
    assert view["layers"][-1]["grid"] == [4, 3]


def test_any_names_are_compared_with_an_image_and_explained(client: TestClient) -> None:
    image = {"images": [in_base64(encode(Image.new("RGB", (30, 20), colour))) for colour in COLOURS.values()]}

    answer = client.post("/predict", json={"model": "any", "labels": "green, blue,red", "top": 2, **image})

    results = answer.json()["results"]
    assert [each["class"] for each in results] == list(COLOURS)
    assert [len(each["scores"]) for each in results] == [2, 2, 2]

    explained = client.post("/explain", **FILE, data={"model": "any", "labels": "red,blue"})
    views = explained.json()["explanation"]["views"]
    assert {each["className"] for each in views} == {"red", "blue"}


def test_explanations_hold_what_the_pages_read(client: TestClient) -> None:
    image = client.post("/explain?model=colours", files={"image": picture(5)}).json()
    text = client.post("/explain", json={"model": "en-de", "text": ENGLISH[1]}).json()

    assert (image["model"], image["task"], text["task"]) == ("colours", "classification", "translation")
    views = {view["name"]: view["layers"] for view in image["explanation"]["views"]}
    layers = views["attention"]
    assert [layer["queryGrid"] for layer in layers] == [[3, 2], [3, 2]]
    assert views["rollout"][0]["grid"] == [3, 2]
    heads = zlib.decompress(base64.b64decode(layers[0]["heads"]))
    assert len(heads) == 2 * 6 * 6
    assert text["explanation"]["name"] == ENGLISH[1]
    assert [view["name"] for view in text["explanation"]["views"]] == ["words", "cross", "source", "target"]


def test_a_given_translation_and_a_named_class_are_explained(client: TestClient) -> None:
    text = {"model": "en-de", "text": ENGLISH[0], "target": "Ein Hund rennt."}
    assert client.post("/explain", json=text).json()["explanation"]["title"] == "Ein Hund rennt."

    answer = client.post("/explain?model=colours&method=relevance&class_name=green", **FILE)
    page = answer.json()["explanation"]
    assert page["views"][page["first"]]["name"] == "relevance"
    assert {each.get("className", "green") for each in page["views"]} == {"green"}


DAMAGED = picture(6)[:40] + bytes(30) + picture(6)[70:]


@pytest.mark.parametrize(
    "content", [b"This is no image.", picture(6)[:60], DAMAGED, b"<!doctype html><html></html>"]
)
@pytest.mark.parametrize("path", ["/predict", "/explain"])
def test_corrupt_images_are_refused_with_the_reason(client: TestClient, path: str, content: bytes) -> None:
    answer = client.post(f"{path}?model=colours", content=content, headers={"content-type": "image/jpeg"})

    refused(answer, 422, "Expected a complete image file")


@pytest.mark.parametrize("size", [(1000, 101), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_decompression_bombs_are_refused_by_their_header(client: TestClient, size: tuple[int, int]) -> None:
    bomb = png_bomb(*size)

    answer = client.post("/predict?model=colours", content=bomb, headers=AS_PNG)

    assert answer.status_code in (413, 422)
    if size[0] < 2**31 - 1:
        refused(answer, 413, "at most 100,000 pixels")


def test_a_body_beyond_the_limit_is_refused_whether_it_says_so_or_not(client: TestClient) -> None:
    large = bytes(200_001)

    declared = client.post("/predict?model=colours", content=large, headers=AS_PNG)
    pieces = (bytes(30_000) for _ in range(8))
    chunked = client.post("/predict?model=colours", content=pieces, headers=AS_PNG)

    refused(declared, 413, "200,001 bytes")
    refused(chunked, 413, "more than 200,000 bytes")


@pytest.mark.parametrize(
    ("content", "status", "part"),
    [
        (b"{", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[" * 20_000, 400, "not JSON"),
        (b"[1]", 422, "is a list"),
        (b"{}", 422, "exactly one"),
        (b'{"image": "QQ==", "text": "a"}', 422, "exactly one"),
        (b'{"image": 3}', 422, "not a string"),
        (b'{"images": []}', 422, "one or more"),
        (b'{"images": ["QQ==", 1]}', 422, "list of strings"),
        (b'{"image": "%%"}', 422, "not base64"),
        (b'{"image": "QQ==", "toop": 3}', 422, "'toop'"),
        (b'{"image": "QQ==", "top": 0}', 422, "top"),
        (b'{"image": "QQ==", "top": "many"}', 422, "top"),
        (b'{"image": "QQ==", "threshold": 0.5}', 422, "'threshold'"),
        (b'{"text": "A dog."}', 422, "takes images"),
    ],
)
def test_json_that_cannot_be_used_is_refused(
    client: TestClient, content: bytes, status: int, part: str
) -> None:
    refused(client.post("/predict?model=colours", content=content, headers=AS_JSON), status, part)


@pytest.mark.parametrize(
    ("path", "request_", "status", "parts"),
    [
        ("/predict?model=colours", {}, 400, ["no body"]),
        ("/predict", {"json": {"model": "colours", "images": ["A" * 60_000] * 4}}, 413, []),
        ("/predict", {"files": {"image": (None, "text")}, "data": {"model": "colours"}}, 422, ["-F image=@"]),
        ("/predict", FILE, 422, ["colours, boxes, says, any, en-de"]),
        ("/predict?model=colour", FILE, 404, ["Did you mean 'colours'"]),
        ("/predict?model=colours", {**FILE, "data": {"model": "boxes"}}, 422, ["twice"]),
        ("/predict?model=en-de", FILE, 422, ["takes text"]),
        ("/predict", {"json": {"model": "en-de", "text": "dog " * 5000}}, 422, ["subwords", "Divide"]),
        ("/predict?model=en-de", {"content": b"caf\xe9", "headers": AS_TEXT}, 400, ["0xe9"]),
        ("/predict", {"json": {"model": "en-de", "texts": ["a"] * 6}}, 413, ["at most 5"]),
        ("/predict", {"json": {"model": "en-de", "text": "A", "target": "B"}}, 422, ["'target'"]),
        ("/explain", {"json": {"model": "en-de", "texts": ["a", "b"]}}, 422, ["one at a time"]),
        ("/explain", {**FILE, "data": {"model": "says", "target": "..."}}, 422, ["target"]),
        ("/explain?model=colours&method=relevance&class_name=gren", FILE, 422, ["'green'"]),
        ("/explain?model=colours&method=guessing", FILE, 422, ["'guessing'"]),
        ("/predict?model=colours&method=relevance", FILE, 422, ["'method'"]),
        ("/predict?model=says&beam_size=1&num_best=2", FILE, 422, ["num_best"]),
        ("/predict", {"json": {"model": "en-de", "text": "A", "penalty_form": "gmnt"}}, 422, ["gnmt"]),
        ("/predict", {**FILE, "data": {"model": "any", "labels": ""}}, 422, ["no class"]),
        ("/predict", {**FILE, "data": {"model": "any", "labels": "red,red"}}, 422, ["twice"]),
        ("/predict", {**FILE, "data": {"model": "any", "labels": "red,,blue"}}, 422, ["empty"]),
        ("/predict", {**FILE, "data": {"model": "any", "labels": "red " * 99}}, 422, ["red"]),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_with_the_reason(
    client: TestClient, path: str, request_: dict[str, Any], status: int, parts: list[str]
) -> None:
    refused(client.post(path, **request_), status, *parts)


@pytest.mark.parametrize(
    "content_type", ["", "text/html", "application/x-www-form-urlencoded", "nonsense", "imagejpeg"]
)
def test_other_content_types_are_refused(client: TestClient, content_type: str) -> None:
    answer = client.post("/predict?model=colours", content=picture(), headers={"content-type": content_type})

    refused(answer, 415, "image/*")


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b"--x\r\n"),
        ("multipart/form-data; boundary=x", b"no form at all"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--\r\n"),
    ],
)
def test_malformed_forms_are_refused(client: TestClient, content_type: str, body: bytes) -> None:
    answer = client.post("/predict?model=colours", content=body, headers={"content-type": content_type})

    assert 400 <= answer.status_code < 500
    refused(answer, answer.status_code)


def test_long_lists_are_refused_before_anything_is_made_of_their_elements(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(*parts: Any) -> None:
        raise AssertionError("an element was looked at")

    monkeypatch.setattr(uploads, "Given", make)
    answer = client.post("/predict", json={"model": "en-de", "texts": [""] * 6})

    refused(answer, 413, "6 inputs", "at most 5")


def test_very_long_texts_are_refused_before_they_are_tokenised(hosting: Hosting) -> None:
    client = TestClient(create_app(hosting, ServeSettings()))

    for changes in ({"text": "a" * 1_000_001}, {"text": "a", "target": "a" * 1_000_001}):
        answer = client.post("/explain", json={"model": "en-de", **changes})
        refused(answer, 413, "1,000,001 characters", "Divide it")


@pytest.mark.parametrize("part", ['"",', "[],", "{},", "1,", '{"":0},'])
def test_json_of_very_many_parts_is_refused_before_any_is_made(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(uploads, "MOST_MARKS", 20_000)
    tracemalloc.start()
    body = f'{{"texts": [{part * (190_000 // len(part))}""]}}'.encode()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()

    answer = client.post("/predict", content=body, headers=AS_JSON)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    refused(answer, 413, "quotes, commas, colons and brackets")
    assert peak - before < 6 * len(body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict?model=en-de", r'{"text": "a \ud83d b"}'),
        ("/predict?model=en-de", r'{"texts": ["a", "\ude00"]}'),
        ("/explain?model=en-de", r'{"text": "a", "target": "\ud83d"}'),
        ("/explain?model=colours", r'{"image": "QQ==", "class_name": "\ud83d"}'),
        ("/predict?model=any", r'{"image": "QQ==", "labels": "red,\ud83d"}'),
        ("/predict", r'{"image": "QQ==", "model": "\ud83d"}'),
        ("/predict?model=any", r'{"image": "QQ==", "\ud83d": 1}'),
    ],
)
def test_halves_of_characters_are_refused(client: TestClient, path: str, body: str) -> None:
    answer = client.post(path, content=body.encode(), headers=AS_JSON)

    refused(answer, 422, "half of a surrogate pair", "as UTF-8")
    whole = rb'{"model": "en-de", "text": "a \ud83d\ude00"}'
    assert client.post("/predict", content=whole, headers=AS_JSON).status_code == 200


@pytest.mark.parametrize(
    "disposition", ['name="text"', 'name="labels"', 'name="image"; filename="+2D0-.png"']
)
def test_halves_of_characters_are_refused_in_forms(client: TestClient, disposition: str) -> None:
    part = f"--x\r\nContent-Disposition: form-data; {disposition}\r\n\r\n+2D0-\r\n"
    image = '--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\na\r\n--x--\r\n'
    form = {"content-type": "multipart/form-data; boundary=x; charset=utf-7"}

    answer = client.post("/predict?model=any", content=(part + image).encode(), headers=form)

    refused(answer, 422, "half of a surrogate pair")


def test_other_addresses_and_methods_are_refused_in_json(client: TestClient) -> None:
    refused(client.get("/nothing"), 404, "/nothing", "/predict", "/healthz")
    answer = client.get("/predict")
    refused(answer, 405, "GET", "POST")
    assert answer.headers["allow"] == "POST"


def test_a_model_that_attends_to_nothing_cannot_be_explained(client: TestClient) -> None:
    answer = client.post("/explain?model=boxes", files={"image": encode(picture_with((30, 30), {}))})

    refused(answer, 422, "attention")


def test_models_tell_what_they_take(client: TestClient) -> None:
    told = {each["name"]: each for each in client.get("/models").json()["models"]}

    assert list(told) == ["colours", "boxes", "says", "any", "en-de"]
    assert told["colours"]["classes"] == NAMES
    assert told["colours"]["image_size"] == [12, 8]
    assert told["en-de"]["languages"] == ["en", "de"]
    assert {each["state"] for each in told.values()} == {"ready"}
    assert (told["colours"]["can_explain"], told["boxes"]["can_explain"]) == (True, False)
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json()["ready"] is True


def test_metrics_count_requests_batches_and_waiting(hosting: Hosting) -> None:
    own = Hosting({"en-de": small_translator()}, ServeSettings())
    own.start()
    own.wait()
    client = TestClient(create_app(own, ServeSettings()))
    client.post("/predict", json={"texts": ["a", "b"]})
    client.post("/predict", content=b"?")

    text = client.get("/metrics").text

    own.close()
    assert 'vitrail_requests_total{endpoint="/predict",model="en-de",status="200"} 1.0' in text
    assert 'vitrail_requests_total{endpoint="/predict",model="",status="415"} 1.0' in text
    assert 'vitrail_batch_size_sum{model="en-de"} 2.0' in text
    assert 'vitrail_queue_length{model="en-de"} 0.0' in text
    assert 'vitrail_request_seconds_count{endpoint="/predict",model="en-de"} 1.0' in text


def test_a_token_is_asked_for_but_not_by_probes_and_pages(hosting: Hosting) -> None:
    settings = ServeSettings.from_tree({"token": "open-sesame"})
    client = TestClient(create_app(hosting, settings))

    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic open-sesame"}):
        answer = client.get("/models", headers=headers)
        refused(answer, 401, "token")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert client.get("/metrics").status_code == 401
    assert client.get("/models", headers={"authorization": "bearer open-sesame"}).status_code == 200
    for path in ("/", "/docs", "/healthz", "/readyz", "/static/live.js"):
        assert client.get(path).status_code == 200, path
    assert "open-sesame" not in repr(settings)


@pytest.mark.parametrize(
    ("headers", "status", "parts"),
    [
        ({}, 200, []),
        ({"host": "localhost:8000"}, 200, []),
        ({"host": "LOCALHOST."}, 200, []),
        ({"host": "vitrail.localhost"}, 200, []),
        ({"host": "127.0.0.2:1", "origin": "http://localhost:3000"}, 200, []),
        ({"host": "[::1]:8000", "origin": "http://[::1]:8000"}, 200, []),
        ({"host": "Models.example.org"}, 421, ["--allow-host models.example.org"]),
        ({"origin": "https://models.example.org"}, 403, ["--allow-host models.example.org"]),
        ({"host": "evil.example:8000"}, 421, ["'evil.example:8000'", "--allow-host evil.example"]),
        ({"host": "localhost.evil.example"}, 421, ["--allow-host localhost.evil.example"]),
        ({"host": "localhost@evil.example"}, 421, ["--allow-host NAME"]),
        ({"host": "127.0.0.1.evil.example"}, 421, []),
        ({"host": "192.168.0.1"}, 421, []),
        ({"host": ""}, 421, []),
        ({"origin": "http://evil.example"}, 403, ["by a page of 'http://evil.example'", "or a token"]),
        ({"origin": "http://192.168.0.1"}, 403, []),
        ({"origin": "null"}, 403, ["'null'", "Use the page of the server, or a token"]),
        ({"origin": ""}, 403, []),
    ],
)
def test_a_server_on_loopback_without_a_token_refuses_other_hosts_and_their_pages(
    hosting: Hosting, headers: dict[str, str], status: int, parts: list[str]
) -> None:
    """Or any page could read from it, once its name resolves to this machine (DNS rebinding)."""

    def answer(url: str = "http://127.0.0.1:8000", **settings: Any) -> Any:
        app = create_app(hosting, ServeSettings.from_tree(settings))
        return TestClient(app, base_url=url).get("/models", headers=headers)

    own = answer()
    assert own.status_code == status
    if status != 200:
        refused(own, status, *parts)
    is_named = "models.example.org" in str(headers).lower()
    for url in ("http://127.0.0.1", "http://10.0.0.5"):
        named = answer(url, allow_hosts=["MODELS.example.org"])
        assert named.status_code == (200 if is_named else status)
    assert answer(token="open-sesame").status_code == 401
    assert answer("http://10.0.0.5").status_code == 200


def test_every_address_that_is_read_answers_head(client: TestClient) -> None:
    for path in (
        "/",
        "/docs",
        "/models",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/static/live.js",
    ):
        assert client.head(path).status_code == 200, path
    assert client.head("/predict").status_code == 405
    assert client.head("/nothing").status_code == 404


def test_the_interface_is_described(client: TestClient) -> None:
    described = client.get("/openapi.json").json()

    assert set(described["paths"]) == {"/predict", "/explain", "/models", "/healthz", "/readyz", "/metrics"}
    predict = described["paths"]["/predict"]["post"]
    assert {"image/*", "multipart/form-data", JSON} <= set(predict["requestBody"]["content"])
    assert {"413", "415", "422", "429", "504"} <= set(predict["responses"])
    assert {each["name"] for each in predict["parameters"]} >= {"model", "top", "threshold"}


def test_pages_name_no_other_host_and_every_file_they_load_is_there(client: TestClient) -> None:
    for path in (*(f"/?model={name}" for name in small_models()), "/docs"):
        page = client.get(path)
        assert page.headers["content-type"].startswith("text/html")
        assert "http" not in page.text.replace('http-equiv="refresh"', "")
        loaded = [each.split('"')[0] for each in page.text.split("static/")[1:]]
        assert loaded
        for name in loaded:
            answer = client.get(f"/static/{name}")
            assert answer.status_code == 200, name
            assert "http:" not in answer.text.replace("http://www.w3.org/2000/svg", "")
            assert "https:" not in answer.text
    refused(client.get("/static/../app.py"), 404)
    refused(client.get("/static/nothing.js"), 404)
