"""OpenAPI descriptions of the endpoints."""

from __future__ import annotations

from typing import Any

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
    403: "Sent by a page of another site",
    404: "Unknown model",
    408: "Upload timed out",
    413: "Request, image or list too large",
    415: "Unsupported content type",
    421: "Sent to a host name that the server does not know",
    422: "Unusable input or option",
    429: "Too many requests in progress; see Retry-After",
    503: "Model still loading, or server stopping",
    504: "Prediction timed out",
}
STRING = {"type": "string"}
BINARY = {"schema": {**STRING, "format": "binary"}}
TEXTS = {"type": "array", "items": STRING, "minItems": 1}


def _object(*, required: bool = True, **properties: Any) -> dict[str, Any]:
    names = {"required": list(properties)} if required else {}
    return {"type": "object", **names, "properties": properties}


def _json(schema: dict[str, Any], example: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema, "example": example}}


def _options() -> dict[str, dict[str, Any]]:
    schemas = {}
    for name, schema in Options.model_json_schema()["properties"].items():
        # Optional fields are "anyOf" their type and null; a request leaves them out.
        (chosen,) = [each for each in schema["anyOf"] if each.get("type") != "null"]
        schemas[name] = {**chosen, "description": schema["description"]}
    return schemas


def _body() -> dict[str, Any]:
    fields = {"model": STRING, **_options()}
    form = _object(required=False, image={**STRING, "format": "binary"}, **fields)
    tree = _object(
        required=False,
        image={**STRING, "format": "byte", "description": "An image file in base64"},
        images={**TEXTS, "description": "Several of them"},
        text={**STRING, "description": "For a translator"},
        texts={**TEXTS, "description": "Several of them"},
        **fields,
    )
    return {
        "required": True,
        "content": {
            "image/*": BINARY,
            "application/octet-stream": BINARY,
            "multipart/form-data": {"schema": form},
            **_json(tree, {"image": "iVBORw0KGgo..."}),
            "text/plain": {"schema": STRING},
        },
    }


def _asking(example: Any, schema: dict[str, Any], what: str) -> dict[int | str, dict[str, Any]]:
    texts: dict[str, Any] = dict.fromkeys(("message", "given", "expected", "remedy"), STRING)
    refusal = _object(error=_object(status={"type": "integer"}, **texts), required=False)
    error = {"application/json": {"schema": refusal}}
    return {
        200: {"description": what, "content": _json(schema, example)},
        **{status: {"description": text, "content": error} for status, text in ERRORS.items()},
    }


def _parameters() -> list[dict[str, Any]]:
    named = {"model": {**STRING, "description": "Name of the model; optional with a single model"}}
    return [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in {**named, **_options()}.items()
    ]


def _plain(what: str, media_type: str = "application/json") -> dict[int | str, dict[str, Any]]:
    return {200: {"description": what, "content": {media_type: {}}}}


EXTRA = {"requestBody": _body(), "parameters": _parameters()}
SCORES = [{"class": "rose", "probability": 0.91}, {"class": "tulip", "probability": 0.05}]
PREDICTED = {"model": "flowers", "results": [{"source": "image", **SCORES[0], "scores": SCORES}]}
PREDICTED_SCHEMA = _object(model=STRING, results={"type": "array", "items": {"type": "object"}})
EXPLAINED = {"model": "flowers", "task": min(TASKS), "explanation": {}}
EXPLAINED_SCHEMA = _object(model=STRING, task={"enum": sorted(TASKS)}, explanation={"type": "object"})


def _operation(method: str, summary: str, responses: dict[int | str, Any], **others: Any) -> dict[str, Any]:
    return {"methods": [method], "summary": summary, "responses": responses, **others}


OPERATIONS = {
    "/predict": _operation(
        "POST",
        "Classify, detect, caption, compare with names, or translate",
        _asking(PREDICTED, PREDICTED_SCHEMA, "A result for each input"),
        description="One result per input, in order. In a list, an unusable input has an error in its place; "
        "if none can be used, or for a single input, the request fails.",
        openapi_extra=EXTRA,
    ),
    "/explain": _operation(
        "POST",
        "Explain one prediction: the attention of every layer and head",
        _asking(EXPLAINED, EXPLAINED_SCHEMA, "All attention"),
        description="Maps are bytes, compressed by zlib, in base64: `mean` over heads and "
        "`heads`, each row of a query scaled from its smallest weight (0) to its largest (255); of "
        "translators the root of the weight times 255.",
        openapi_extra=EXTRA,
    ),
    "/models": _operation("GET", "List the models with their classes and options", _plain("A list")),
    "/healthz": _operation(
        "GET", "Liveness", _plain("Healthy"), description="503 if the process should be restarted."
    ),
    "/readyz": _operation(
        "GET",
        "Readiness",
        _plain("Ready"),
        description="503 while models load, if one failed to, and while the server stops.",
    ),
    "/metrics": _operation("GET", "Prometheus metrics", _plain("Prometheus text format", "text/plain")),
}
