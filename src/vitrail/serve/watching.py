"""Middleware around every request: hosts, authentication, metrics, HEAD, and JSON for uncaught errors."""

from __future__ import annotations

import hmac
import logging
import re
import time
from collections.abc import Sequence
from http import HTTPStatus

from fastapi import Request, Response
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
ABSOLUTE = re.compile(r"(?i)https?://(?P<host>[^/]*)/?(?P<path>.*)")  # a request's target
# The rest of a body that came too slowly may never arrive.
HEADERS_OF = {401: {"www-authenticate": "Bearer"}, 408: {"connection": "close"}}
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
        if absolute := ABSOLUTE.fullmatch(scope["path"]):
            # Its host counts, not the header's (RFC 9112, 3.2.2).
            others = [each for each in scope["headers"] if each[0] != b"host"]
            headers = [*others, (b"host", absolute["host"].encode())]
            scope = {**scope, "path": f"/{absolute['path']}", "headers": headers}
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
            self._check(scope, Headers(scope=scope))
            await self.app(scope, receive, watched_send)
        except VitrailError as error:
            await _response(error)(scope, receive, watched_send)
        except ClientGoneError:
            await Response(status_code=GONE)(scope, receive, watched_send)
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

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Refuse other hosts, and requests without the token.

        A page of another site could read responses, once its name resolves to the server's address
        (DNS rebinding); Host and Origin still tell the name.
        """
        own, path = scope["server"][0], scope["path"]
        if self.hosts or (self.expected is None and is_loopback(own)):
            for status, header, given in (
                (421, "host", "is for the host"),
                (403, "origin", "is by a page of"),
            ):
                sent = headers.get(header)
                name = own if sent is None else host_name(sent.rpartition("://")[2])
                if name not in (own, *self.hosts) and not is_loopback(name):
                    allowing = f"If that is yours, start it with --allow-host {name or 'NAME'}"
                    raise RefusalError(
                        status,
                        f"the request {given} {str(sent)[:100]!r}",
                        expected=", ".join(("localhost", own, *self.hosts)),
                        remedy=f"{'Use the page of the server' if sent == 'null' else allowing}, or a token",
                    )
        if self.expected is None or path in OPEN_PATHS or path.startswith(STATIC_PREFIX):
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # In constant time, so that timing does not reveal the token.
        if not hmac.compare_digest(f"{scheme.title()} {token.strip()}".encode(), self.expected):
            raise RefusalError(
                401,
                "the request carries no token, or a wrong one",
                expected="the header Authorization: Bearer TOKEN",
                remedy="Ask whoever runs the server for its token",
            )


def _response(error: VitrailError) -> JSONResponse:
    status = status_of(error)
    headers = dict(HEADERS_OF.get(status, ()))
    if isinstance(error, RefusalError) and error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    return JSONResponse(error_tree(error), status, headers)


def _failed(error: Exception) -> JSONResponse:
    is_memory = isinstance(error, MemoryError)
    refusal = RefusalError(
        503 if is_memory else 500,
        "there was not enough memory" if is_memory else f"the server failed: {type(error).__name__}",
        expected="an answer",
        remedy="Send fewer or smaller inputs" if is_memory else "See the log of the server",
    )
    return JSONResponse(error_tree(refusal), refusal.status, {"connection": "close"})


async def answer_http_error(request: Request, error: Exception) -> Response:
    """Answer what the framework refuses like our own errors."""
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
