"""OpenAPI descriptions of the endpoints."""

from __future__ import annotations

from typing import Any, NamedTuple

from vitrail.tasks.registry import TASKS
from vitrail.tasks.serving import Options

DESCRIPTION = """Models of images and texts: their answers, and what each answer was read from.

An image is sent as the body itself, as a form, or in JSON as base64; a text in JSON or as text/plain.
Every error is JSON: `{"error": {"status", "message", "given", "expected", "remedy"}}`.
With several models, `model` says which.
Where the server has a token, requests carry `Authorization: Bearer TOKEN`."""

ERRORS = {
    400: "The body cannot be taken apart",
    401: "The token is missing or wrong",
    404: "There is no such model",
    408: "The upload took too long",
    413: "The request, the image or the list is too large",
    415: "The content type is another",
    422: "The input or an option cannot be used",
    429: "Too much waits already; Retry-After says for how long",
    503: "The model is being loaded, or the server stops",
    504: "The answer took too long",
}
ERROR_SCHEMA = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "required": ["status", "message", "given", "expected", "remedy"],
            "properties": {
                "status": {"type": "integer"},
                **{name: {"type": "string"} for name in ("message", "given", "expected", "remedy")},
            },
        }
    },
}
BINARY = {"schema": {"type": "string", "format": "binary"}}
TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}


class Operation(NamedTuple):
    """One endpoint."""

    method: str
    summary: str
    description: str
    responses: dict[int | str, dict[str, Any]]
    extra: dict[str, Any]


def _json(schema: dict[str, Any], example: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema, "example": example}}


def _options() -> dict[str, dict[str, Any]]:
    """Return the schema of each option."""
    schemas = {}
    for name, schema in Options.model_json_schema()["properties"].items():
        # Optional fields are "anyOf" their type and null; a request leaves them out.
        (chosen,) = [each for each in schema["anyOf"] if each.get("type") != "null"]
        schemas[name] = {**chosen, "description": schema["description"]}
    return schemas


def _body() -> dict[str, Any]:
    fields = {"model": {"type": "string"}, **_options()}
    form = {
        "type": "object",
        "properties": {"image": {"type": "string", "format": "binary"}, **fields},
    }
    tree = {
        "type": "object",
        "properties": {
            "image": {"type": "string", "format": "byte", "description": "An image file in base64"},
            "images": {**TEXTS, "description": "Several of them"},
            "text": {"type": "string", "description": "For a translator"},
            "texts": {**TEXTS, "description": "Several of them"},
            **fields,
        },
    }
    return {
        "required": True,
        "content": {
            "image/*": BINARY,
            "application/octet-stream": BINARY,
            "multipart/form-data": {"schema": form},
            **_json(tree, {"image": "iVBORw0KGgo..."}),
            "text/plain": {"schema": {"type": "string"}},
        },
    }


def _asking(example: Any, schema: dict[str, Any], what: str) -> dict[int | str, dict[str, Any]]:
    answers: dict[int | str, dict[str, Any]] = {200: {"description": what, "content": _json(schema, example)}}
    for status, description in ERRORS.items():
        answers[status] = {
            "description": description,
            "content": {"application/json": {"schema": ERROR_SCHEMA}},
        }
    return answers


def _parameters() -> list[dict[str, Any]]:
    named = {"model": {"type": "string", "description": "Its name; with one model it may be left out"}}
    return [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in {**named, **_options()}.items()
    ]


def _plain(what: str, media_type: str = "application/json") -> dict[int | str, dict[str, Any]]:
    return {200: {"description": what, "content": {media_type: {}}}}


EXTRA = {"requestBody": _body(), "parameters": _parameters()}
PREDICTED = {
    "model": "flowers",
    "results": [
        {
            "source": "image",
            "class": "rose",
            "probability": 0.91,
            "scores": [{"class": "rose", "probability": 0.91}, {"class": "tulip", "probability": 0.05}],
        }
    ],
}
PREDICTED_SCHEMA = {
    "type": "object",
    "required": ["model", "results"],
    "properties": {
        "model": {"type": "string"},
        "results": {"type": "array", "items": {"type": "object"}},
    },
}
EXPLAINED_SCHEMA = {
    "type": "object",
    "required": ["model", "task", "explanation"],
    "properties": {
        "model": {"type": "string"},
        "task": {"enum": sorted(TASKS)},
        "explanation": {"type": "object"},
    },
}

OPERATIONS = {
    "/predict": Operation(
        "POST",
        "Classes of images, boxes in images, captions, the nearest of any names, or translations",
        "A result for each input, in their order. Of a list, an input that cannot be used has an error in "
        "its place; where none can be used, and for a single input, the request is refused.",
        _asking(PREDICTED, PREDICTED_SCHEMA, "A result for each input"),
        EXTRA,
    ),
    "/explain": Operation(
        "POST",
        "What an answer was read from: the attention of every layer and head",
        "For one input. Maps are bytes, compressed by zlib and written in base64: `mean` over heads and "
        "`heads`, each row of a query scaled from its smallest weight (0) to its largest (255); of "
        "translators the root of the weight times 255.",
        _asking(
            {"model": "flowers", "task": min(TASKS), "explanation": {}},
            EXPLAINED_SCHEMA,
            "All attention",
        ),
        EXTRA,
    ),
    "/models": Operation("GET", "The models, their classes and their options", "", _plain("A list"), {}),
    "/healthz": Operation(
        "GET", "Whether the process works", "503 where it should be restarted.", _plain("It does"), {}
    ),
    "/readyz": Operation(
        "GET",
        "Whether requests should be sent here",
        "503 while models are loaded, where one could not be, and while the server stops.",
        _plain("They should"),
        {},
    ),
    "/metrics": Operation(
        "GET", "Counters for Prometheus", "", _plain("Text of Prometheus", "text/plain"), {}
    ),
}
