"""Middleware around every request: authentication, metrics, and JSON for uncaught errors."""

from __future__ import annotations

import hmac
import logging
import time
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.core.errors import VitrailError
from vitrail.serve.description import OPERATIONS
from vitrail.serve.hosting import Metrics
from vitrail.tasks.serving import ClientGoneError, RefusalError, error_tree, status_of

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset(("/", "/docs", "/openapi.json", "/healthz", "/readyz", "/favicon.ico"))
STATIC_PREFIX = "/static/"
ENDPOINTS = OPEN_PATHS | {"/predict", "/explain", "/models", "/metrics"}
MODEL_KEY = "vitrail.model"  # in the scope of a request, once its model is known
GONE = 499  # as in nginx: the client closed the connection
# Everything comes from the server itself; nothing inline runs, and no other page may frame it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Watch:
    """Checks the token, counts and times each request, and handles uncaught errors.

    Args:
        token: required token; None disables authentication.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, token: str | None) -> None:
        self.app, self.metrics = app, metrics
        self.expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            if self._may_ask(scope):
                await self.app(scope, receive, watched_send)
            else:
                await _unauthorised()(scope, receive, watched_send)
        except Exception as error:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if status:
                raise  # half a response is sent; the connection is closed
            await _failed(error)(scope, receive, watched_send)
        finally:
            path = scope["path"]
            endpoint = path if path in ENDPOINTS else "static" if path.startswith(STATIC_PREFIX) else "other"
            seconds = time.perf_counter() - began
            self.metrics.add_request(endpoint, scope.get(MODEL_KEY, ""), status or GONE, seconds)

    def _may_ask(self, scope: Scope) -> bool:
        if self.expected is None or scope["path"] in OPEN_PATHS or scope["path"].startswith(STATIC_PREFIX):
            return True
        given = Headers(scope=scope).get("authorization", "")
        scheme, _, token = given.partition(" ")
        # In constant time, so that timing does not reveal the token.
        return hmac.compare_digest(f"{scheme.title()} {token.strip()}".encode(), self.expected)


def _unauthorised() -> JSONResponse:
    error = RefusalError(
        401,
        "the request carries no token, or a wrong one",
        expected="the header Authorization: Bearer TOKEN",
        remedy="Ask whoever runs the server for its token",
    )
    return JSONResponse(error_tree(error), 401, {"www-authenticate": "Bearer"})


def _failed(error: Exception) -> JSONResponse:
    is_memory = isinstance(error, MemoryError)
    refusal = RefusalError(
        503 if is_memory else 500,
        "there was not enough memory" if is_memory else f"the server failed: {type(error).__name__}",
        expected="an answer",
        remedy="Send fewer or smaller inputs" if is_memory else "See the log of the server",
    )
    return JSONResponse(error_tree(refusal), refusal.status, {"connection": "close"})


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
    return JSONResponse(error_tree(error), status, headers)


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
    return JSONResponse(error_tree(refusal), error.status_code, dict(error.headers or {}))


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=GONE)
