"""OpenAPI descriptions of the endpoints."""

from __future__ import annotations

from typing import Any, NamedTuple

from vitrail.tasks.registry import TASKS
from vitrail.tasks.serving import Options

DESCRIPTION = """Predictions of image and text models, and explanations of them.

Send an image as the body, as a form, or as base64 in JSON; a text in JSON or as text/plain.
Every error is JSON: `{"error": {"status", "message", "given", "expected", "remedy"}}`.
With several models, name one as `model`.
If the server requires a token, send `Authorization: Bearer TOKEN`."""

ERRORS = {
    400: "Malformed request body",
    401: "Missing or wrong token",
    404: "Unknown model",
    408: "Upload timed out",
    413: "Request, image or list too large",
    415: "Unsupported content type",
    422: "Unusable input or option",
    429: "Too many requests in progress; see Retry-After",
    503: "Model still loading, or server stopping",
    504: "Prediction timed out",
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
    named = {"model": {"type": "string", "description": "Name of the model; optional with a single model"}}
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
        "Classify, detect, caption, compare with names, or translate",
        "One result per input, in order. In a list, an unusable input has an error in its place; if none can "
        "be used, or for a single input, the request fails.",
        _asking(PREDICTED, PREDICTED_SCHEMA, "A result for each input"),
        EXTRA,
    ),
    "/explain": Operation(
        "POST",
        "Explain one prediction: the attention of every layer and head",
        "Maps are bytes, compressed by zlib, in base64: `mean` over heads and "
        "`heads`, each row of a query scaled from its smallest weight (0) to its largest (255); of "
        "translators the root of the weight times 255.",
        _asking(
            {"model": "flowers", "task": min(TASKS), "explanation": {}},
            EXPLAINED_SCHEMA,
            "All attention",
        ),
        EXTRA,
    ),
    "/models": Operation("GET", "List the models with their classes and options", "", _plain("A list"), {}),
    "/healthz": Operation(
        "GET", "Liveness", "503 if the process should be restarted.", _plain("Healthy"), {}
    ),
    "/readyz": Operation(
        "GET",
        "Readiness",
        "503 while models load, if one failed to, and while the server stops.",
        _plain("Ready"),
        {},
    ),
    "/metrics": Operation(
        "GET", "Prometheus metrics", "", _plain("Prometheus text format", "text/plain"), {}
    ),
}
