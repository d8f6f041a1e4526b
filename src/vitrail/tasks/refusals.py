"""Refused requests, as JSON: given, expected, remedy."""

from __future__ import annotations

from typing import Any

from vitrail.core.errors import CheckpointError, VitrailError, did_you_mean
from vitrail.data.images import TooManyPixelsError


class RefusalError(VitrailError):
    """A request that cannot be answered.

    Args:
        status: of HTTP.
        retry_after_s: when the same request may succeed, if ever.
    """

    def __init__(
        self, status: int, given: str, *, expected: str, remedy: str, retry_after_s: int | None = None
    ) -> None:
        super().__init__(given, expected=expected, remedy=remedy)
        self.status, self.retry_after_s = status, retry_after_s


class ClientGoneError(Exception):
    """The client has hung up."""


def status_of(error: VitrailError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, RefusalError):
        return error.status
    if isinstance(error, TooManyPixelsError):
        return 413
    return 500 if isinstance(error, CheckpointError) else 422


def error_tree(error: VitrailError, status: int | None = None) -> dict[str, Any]:
    """Return an error as JSON values."""
    return {
        "error": {
            "status": status_of(error) if status is None else status,
            "message": str(error),
            "given": error.given,
            "expected": error.expected,
            "remedy": error.remedy,
        }
    }


def too_many_inputs(count: int, most: int) -> RefusalError:
    """Refuse more inputs than the queue can ever hold."""
    return RefusalError(
        413,
        f"the request has {count} inputs",
        expected=f"at most {most} in one request, as many as may wait for a model",
        remedy="Divide it, or start the server with a larger --queue",
    )


def unknown_field(name: str, known: list[str], who: str) -> RefusalError:
    """Refuse an unknown field of a request.

    Args:
        known: the supported fields.
        who: beginning of the message, such as "this model does not take".
    """
    return RefusalError(
        422,
        f"the request has a field {name!r}, which {who}",
        expected=f"the fields {', '.join(known)}",
        remedy=did_you_mean(name, known),
    )
