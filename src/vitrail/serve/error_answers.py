"""JSON responses for every error of an endpoint."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from vitrail.core.errors import VitrailError
from vitrail.serve.description import OPERATIONS
from vitrail.serve.watching import GONE, answer_json
from vitrail.tasks.serving import ClientGoneError, RefusalError, error_tree, status_of


def add_error_answers(app: FastAPI) -> None:
    """Handle our errors and those of the framework alike."""
    app.add_exception_handler(VitrailError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(ClientGoneError, _answer_nobody)


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, VitrailError)
    headers: dict[str, str] = {}
    status = status_of(error)
    if isinstance(error, RefusalError) and error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    if status == 408:
        headers["connection"] = "close"  # the rest of the body may never arrive
    return answer_json(error_tree(error), status, headers)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == 405:
        given, expected = f"{path} does not take {request.method}", Headers(error.headers).get("allow", "GET")
    elif error.status_code == 404:
        given, expected = f"there is no {path}", "one of " + ", ".join(OPERATIONS)
    else:
        given, expected = str(error.detail), HTTPStatus(error.status_code).phrase
    refusal = RefusalError(error.status_code, given, expected=expected, remedy="/docs lists all addresses")
    return answer_json(error_tree(refusal), error.status_code, dict(error.headers or {}))


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=GONE)
