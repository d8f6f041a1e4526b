"""Middleware around every request: hosts, authentication, metrics, HEAD, and JSON for uncaught errors."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Sequence
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.core.errors import VitrailError
from vitrail.serve.description import OPERATIONS
from vitrail.serve.hosting import Metrics
from vitrail.serve.settings import host_name, is_loopback
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
    """Checks hosts and the token, counts and times each request, and handles uncaught errors.

    Args:
        token: required token; None disables authentication.
        hosts: names that requests may be for besides those of this machine.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, token: str | None, hosts: Sequence[str] = ()) -> None:
        self.app, self.metrics, self.hosts = app, metrics, hosts
        self.expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # as GET; the protocol leaves the body out
            scope = {**scope, "method": "GET"}
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
            refusal = self._refusal(scope)
            await (self.app if refusal is None else refusal)(scope, receive, watched_send)
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

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        error = self._check_hosts(scope, headers)
        if error is not None:
            return JSONResponse(error_tree(error), error.status)
        if self.expected is None or scope["path"] in OPEN_PATHS or scope["path"].startswith(STATIC_PREFIX):
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # In constant time, so that timing does not reveal the token.
        if hmac.compare_digest(f"{scheme.title()} {token.strip()}".encode(), self.expected):
            return None
        error = RefusalError(
            401,
            "the request carries no token, or a wrong one",
            expected="the header Authorization: Bearer TOKEN",
            remedy="Ask whoever runs the server for its token",
        )
        return JSONResponse(error_tree(error), 401, {"www-authenticate": "Bearer"})

    def _check_hosts(self, scope: Scope, headers: Headers) -> RefusalError | None:
        """Refuse what a page of another site may have sent to a server on loopback that asks for no token.

        Such a page reads responses once its name resolves to the server's address (DNS rebinding), but Host
        and Origin still tell the name.
        """
        own = scope["server"][0]
        if not self.hosts and (self.expected is not None or not is_loopback(own)):
            return None
        host, origin = headers.get("host"), headers.get("origin")
        remedy = "Start the server with --allow-host {}, or with a token"
        for status, authority, who in (
            (421, host, f"the request is for the host {str(host)[:100]!r}"),
            (403, origin and origin.partition("://")[2], f"a page of {str(origin)[:100]!r} sent the request"),
        ):
            name = None if authority is None else host_name(authority)
            if name is not None and name not in self.hosts and name != own and not is_loopback(name):
                return RefusalError(
                    status,
                    who,
                    expected=", ".join(("localhost", own, *self.hosts)),
                    remedy=remedy.format(name or "NAME"),
                )
        return None


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
