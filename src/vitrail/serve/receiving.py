"""Reading of request bodies within limits of size, time and total memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request

from vitrail.tasks.serving import ClientGoneError, RefusalError

PATIENCE_S = 2.0  # a faster upload is never cancelled for others


class Upload:
    """One upload in progress.

    Args:
        deadline: cancels it.
    """

    def __init__(self, deadline: asyncio.Timeout) -> None:
        self.deadline, self.began = deadline, time.monotonic()
        self.held_bytes = 0
        self.gave_way = False

    @property
    def seconds(self) -> float:
        """Its age."""
        return time.monotonic() - self.began


class UploadBudget:
    """Bounds the memory of all uploads, without letting slow ones block others.

    When memory is full, the upload with the most byte-seconds is cancelled, unless it is younger than
    ``PATIENCE_S``. Fast senders are done by then; slow ones may use the full time-out as long as nobody needs
    the memory.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes, self.held_bytes = limit_bytes, 0
        self._arriving: set[Upload] = set()

    @contextmanager
    def arrival(self, deadline: asyncio.Timeout) -> Iterator[Upload]:
        """Register an upload for the block; its bytes stay held afterwards unless it fails."""
        upload = Upload(deadline)
        self._arriving.add(upload)
        try:
            yield upload
        except BaseException:
            self.give_back(upload.held_bytes)
            raise
        finally:
            self._arriving.discard(upload)

    def take(self, upload: Upload, size: int) -> None:
        """Hold more bytes.

        Raises:
            RefusalError: there is no memory for them, or the upload was cancelled.
        """
        while self.held_bytes + size > self.limit_bytes and not upload.gave_way:
            longest = self._longest()
            if longest is None or longest is upload:
                raise RefusalError(
                    429,
                    f"other uploads take {self.held_bytes - upload.held_bytes:,} bytes already",
                    expected=f"at most {self.limit_bytes:,} bytes of all uploads together",
                    remedy="Ask again after the seconds of Retry-After",
                    retry_after_s=1,
                )
            self._end(longest)
        if upload.gave_way:
            raise _gave_way(upload)
        self.held_bytes += size
        upload.held_bytes += size

    def give_back(self, size: int) -> None:
        """Release bytes."""
        self.held_bytes -= size

    def _longest(self) -> Upload | None:
        """Return the upload with the most byte-seconds, None if all are young."""
        slow = [each for each in self._arriving if each.held_bytes and each.seconds > PATIENCE_S]
        return max(slow, key=lambda each: each.held_bytes * each.seconds, default=None)

    def _end(self, upload: Upload) -> None:
        self._arriving.discard(upload)
        self.give_back(upload.held_bytes)
        upload.held_bytes, upload.gave_way = 0, True
        if not upload.deadline.expired():  # its task has not yet been cancelled
            upload.deadline.reschedule(asyncio.get_running_loop().time())


async def read_body(request: Request, *, limit: int, timeout_s: float, budget: UploadBudget) -> bytes:
    """Read a request's body; the caller releases its bytes from the budget.

    A body that is too large is refused before its end: the protocol discards the rest, so that the sender can
    read the response.

    Raises:
        RefusalError: too large (413), too slow (408), or no memory for uploads (429).
        ClientGoneError: the client hung up.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    held = bytearray()
    upload: Upload | None = None
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            with budget.arrival(deadline) as upload:
                more = True
                while more:
                    chunk, more = await _receive(request)
                    if len(held) + len(chunk) > limit:
                        raise _too_large(None, limit)
                    budget.take(upload, len(chunk))
                    held += chunk
    except TimeoutError:
        if upload is not None and upload.gave_way:
            raise _gave_way(upload) from None
        raise RefusalError(
            408,
            f"{len(held):,} bytes came within {timeout_s:g} s, and no end",
            expected="the whole request within that time",
            remedy="Send less, or over a faster connection",
        ) from None
    return bytes(held)


async def _receive(request: Request) -> tuple[bytes, bool]:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message.get("body", b""), message.get("more_body", False)


def _gave_way(upload: Upload) -> RefusalError:
    return RefusalError(
        408,
        f"the request did not come to its end within {upload.seconds:.0f} s, and others need its room",
        expected=f"the whole request within {PATIENCE_S:g} s while much is sent at once",
        remedy="Send it again later, send less, or over a faster connection",
    )


def _too_large(size: int | None, limit: int) -> RefusalError:
    given = f"the request has {size:,} bytes" if size else f"the request has more than {limit:,} bytes"
    return RefusalError(
        413,
        given,
        expected=f"at most {limit:,} bytes",
        remedy="Send a smaller image, or fewer, or start the server with a larger --max-upload-mb",
    )
