"""Parses request bodies into inputs, at a memory cost close to their size."""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
import json
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from vitrail.tasks.serving import ClientGoneError, Given, RefusalError, too_many_inputs

MAX_FIELDS = 32  # of a form, besides its files
MAX_FIELD_BYTES = 1_000_000  # or characters of a text in JSON
# JSON costs up to 50 bytes for each of these characters, none of which base64 contains.
MARKS = b'",:[{'
MOST_MARKS, MARKS_PER_INPUT = 200_000, 100
SENT_IN_PARTS = "multipart/form-data"
TYPES = f"image/*, application/octet-stream, {SENT_IN_PARTS}, application/json or text/plain"
INPUT_FIELDS = ("image", "images", "text", "texts")


class Asked(NamedTuple):
    """A parsed request."""

    inputs: tuple[Given, ...]
    """At least one."""
    is_list: bool
    """Whether it is a list, so that a bad input is reported in its place."""
    options: dict[str, Any]
    """Model and options, not yet validated."""


async def take_apart(body: bytes, request: Request, most_inputs: int) -> Asked:
    """Parse a body by its content type; query parameters take precedence.

    Args:
        most_inputs: maximum for JSON; forms are limited anyway.

    Raises:
        RefusalError: the body is empty, of another type or damaged, has too many inputs or text that is not
            valid UTF-8, or names an option twice.
    """
    asked = await _by_content_type(body, request, most_inputs)
    for part in (*itertools.chain(*asked.inputs), *itertools.chain(*asked.options.items())):
        if isinstance(part, str):
            _check_characters(part)
    return asked


async def _by_content_type(body: bytes, request: Request, most_inputs: int) -> Asked:
    options: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        _add_option(options, name, value)
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not body:
        raise RefusalError(
            400,
            "the request has no body",
            expected=TYPES,
            remedy="Send an image or a text; /docs has examples",
        )
    if content_type == SENT_IN_PARTS:
        return await _from_form(body, request, options)
    if content_type == "application/json":
        return await asyncio.to_thread(_from_json, body, options, most_inputs)
    if content_type == "text/plain":
        return Asked((Given("the text", _decode_text(body)),), False, options)
    if content_type.startswith("image/") or content_type == "application/octet-stream":
        return Asked((Given("the upload", body),), False, options)
    raise RefusalError(
        415,
        f"the request's content type is {content_type or 'missing'}",
        expected=TYPES,
        remedy="Set the header Content-Type to what the body is",
    )


async def _from_form(body: bytes, request: Request, options: dict[str, Any]) -> Asked:
    async def whole() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(
        request.headers, whole(), max_files=1000, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES
    )
    parser.spool_max_size = len(body) + 1  # it is in memory already, spooling to disk would not help
    try:
        form = await parser.parse()
    except (MultiPartException, ValueError, KeyError) as error:
        raise RefusalError(
            400,
            f"the form cannot be read: {getattr(error, 'message', error)}",
            expected=f"{SENT_IN_PARTS} with a boundary, and a name for each part",
            remedy="Let a library write the form, or send the image alone as image/jpeg",
        ) from None
    inputs: list[Given] = []
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                inputs.append(Given(value.filename or f"image {len(inputs)}", await value.read()))
            elif name in ("text", "texts"):
                inputs.append(Given(f"text {len(inputs)}", value))
            else:
                _add_option(options, name, value)
    finally:
        await form.close()
    if not inputs:
        raise RefusalError(
            422,
            "the form has no file",
            expected="a part with a file name for each image, or a field 'text'",
            remedy="Send it such as curl does: -F image=@cat.jpg",
        )
    return Asked(tuple(inputs), len(inputs) > 1, options)


def _from_json(body: bytes, options: dict[str, Any], most_inputs: int) -> Asked:
    _check_marks(body, max(MOST_MARKS, MARKS_PER_INPUT * most_inputs))
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise RefusalError(
            400, f"the body is not JSON: {reason}", expected="a JSON object", remedy="Correct the JSON"
        ) from None
    if not isinstance(tree, dict):
        raise RefusalError(
            422,
            f"the JSON is a {type(tree).__name__}",
            expected='an object such as {"image": "BASE64"} or {"texts": ["...", "..."]}',
            remedy="Put the input into an object",
        )
    named = [name for name in INPUT_FIELDS if name in tree]
    for name in named:
        if isinstance(tree[name], list) and len(tree[name]) > most_inputs:
            raise too_many_inputs(len(tree[name]), most_inputs)
    if len(named) != 1:
        raise RefusalError(
            422,
            f"the JSON has {', '.join(named) or 'none'} of the fields {', '.join(INPUT_FIELDS)}",
            expected="exactly one of them",
            remedy='Send such as {"image": "BASE64"} or {"texts": ["...", "..."]}',
        )
    for name, value in tree.items():
        if name not in INPUT_FIELDS and value is not None:
            _add_option(options, name, value)
    return Asked(_json_inputs(named[0], tree[named[0]]), named[0].endswith("s"), options)


def _json_inputs(field: str, value: Any) -> tuple[Given, ...]:
    is_list = field.endswith("s")
    texts = value if is_list else [value]
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
        raise RefusalError(
            422,
            f"the field {field!r} is not {'a list of strings with one or more' if is_list else 'a string'}",
            expected="strings: text, or the bytes of an image file in base64",
            remedy=f"Correct {field!r}",
        )
    if field.startswith("text"):
        return tuple(Given(f"text {place}", text) for place, text in enumerate(texts))
    return tuple(Given(f"image {place}", _from_base64(text, place)) for place, text in enumerate(texts))


def _from_base64(text: str, place: int) -> bytes:
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusalError(
            422,
            f"image {place} is not base64: {error}",
            expected="the bytes of an image file in base64 (RFC 4648), or a data: URL with them",
            remedy="Encode the file, such as with: base64 -w0 cat.jpg",
        ) from None


def _check_marks(body: bytes, most: int) -> None:
    num_marks = sum(body.count(mark) for mark in MARKS)
    if num_marks > most:
        raise RefusalError(
            413,
            f"the JSON has {num_marks:,} quotes, commas, colons and brackets",
            expected=f"at most {most:,}",
            remedy="Divide it into several requests",
        )


def _check_characters(text: str) -> None:
    """Refuse text that would keep a model's thread for seconds, or that cannot be encoded in a response."""
    if len(text) > MAX_FIELD_BYTES:
        given, most = f"a text has {len(text):,} characters", f"at most {MAX_FIELD_BYTES:,}"
        raise RefusalError(413, given, expected=most, remedy="Divide it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RefusalError(
            422,
            f"a text has half of a surrogate pair, U+{ord(text[error.start]):04X}, as character "
            f"{error.start + 1}",
            expected="text that can be written as UTF-8",
            remedy="Send such a character as UTF-8, or by both of its halves",
        ) from None


def _decode_text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise RefusalError(
            400,
            f"the text is not UTF-8: byte {error.start + 1} is 0x{body[error.start]:02x}",
            expected="text encoded as UTF-8",
            remedy="Convert it, such as with: iconv -f WINDOWS-1252 -t UTF-8",
        ) from None


def _add_option(options: dict[str, Any], name: str, value: Any) -> None:
    if name in options:
        raise RefusalError(
            422, f"the request gives {name!r} twice", expected="each option once", remedy="Leave one out"
        )
    options[name] = value


PATIENCE_S = 2.0  # a faster upload is never cancelled for others


class Upload:
    """One upload in progress."""

    def __init__(self, deadline: asyncio.Timeout) -> None:
        self.deadline, self.began = deadline, time.monotonic()
        self.held_bytes = 0
        self.gave_way = False

    @property
    def seconds(self) -> float:
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
                    remedy="Retry after the seconds in Retry-After",
                    retry_after_s=1,
                )
            self._end(longest)
        if upload.gave_way:
            raise _gave_way(upload)
        self.held_bytes += size
        upload.held_bytes += size

    def give_back(self, size: int) -> None:
        self.held_bytes -= size

    def _longest(self) -> Upload | None:
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
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    chunk, more = message.get("body", b""), message.get("more_body", False)
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
