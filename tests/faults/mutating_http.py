"""Send mutated requests to a server, and look for exceptions, broken answers and hangs.

    PYTHONPATH=tests python tests/faults/mutating_http.py --seconds 60

The protocol and the application run in this process, on a transport that only keeps what is written, so that
thousands of connections a second need no socket. Each seed is a whole connection of one or two requests.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import logging
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from uvicorn.server import ServerState

from faults.exchange import split_answers
from making.served_models import picture, small_models
from vitrail.serve.hosting import Hosting
from vitrail.serve.protocol import PatientProtocol
from vitrail.serve.server import ModelServer
from vitrail.serve.settings import ServeSettings

HANG_S = 5.0
MOST_MIB = 1024.0
PICTURE = picture(size=(6, 5))


def _post(target: str, kind: str, body: bytes, *headers: str) -> bytes:
    lines = (f"POST {target} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}", *headers)
    return "\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode() + body


FORM = (
    b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\nContent-Type: image/png\r\n\r\n%s'
    b'\r\n--x\r\nContent-Disposition: form-data; name="top"\r\n\r\n2\r\n--x--\r\n'
) % PICTURE
IN_JSON = json.dumps({"model": "boxes", "image": base64.b64encode(PICTURE).decode()}).encode()
CHUNKS = b"5;name=value\r\nhello\r\n%x\r\n%s\r\n0\r\nTrailer: x\r\n\r\n" % (len(PICTURE), PICTURE)
AS_JSON, AS_PNG = "application/json", "image/png"
SEEDS = (
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /readyz HTTP/1.1\r\nHost: localhost:80\r\n\r\n",
    b"GET http://localhost/models?x=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"HEAD /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: keep-alive\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: [::1]:8000\r\nOrigin: http://localhost\r\nExpect: 100-continue\r\n\r\n",
    b"GET /static/live.js?a HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    b"POST /predict?model=colours HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    _post("/predict?model=colours&top=2", AS_PNG, PICTURE, "Expect: 100-continue"),
    _post("/predict?model=colours", "multipart/form-data; boundary=x", FORM),
    _post("/predict?model=en-de&beam_size=2", "text/plain; charset=utf-8", b"A dog."),
    _post("/predict", AS_JSON, b'{"model": "en-de", "texts": ["A dog.", "\\u0041"], "num_best": 2}'),
    _post("/explain", AS_JSON, b'{"model": "en-de", "text": "A dog.", "target": "Ein Hund."}'),
    _post("/explain?model=says", AS_PNG, PICTURE),
    _post(
        "/predict",
        AS_JSON,
        json.dumps({"model": "boxes", "image": base64.b64encode(PICTURE).decode()}).encode(),
    ),
)
PIECES = (
    b'\r\n|\n|\r| |\t|\0|:|;|,|%|\xff|\\ud83d|{|"|-1|0|99999999999999999999|1e309|NaN|null|--x\r\n|--x--|%00|'
    b"Content-Length: 5\r\n|Transfer-Encoding: chunked\r\n|Transfer-Encoding: gzip\r\n| folded\r\n|../|//|"
    b"Host: evil.example\r\n|Origin: null\r\n|; charset=utf-7|Connection: close\r\n|HTTP/2.0|HTTP/1.0|HEAD |"
    + b"["
    * 999
).split(b"|")


def mutate(chooser: random.Random) -> bytes:
    """Return a connection's bytes with one to four changes."""
    sent = bytearray(chooser.choice(SEEDS))
    for _ in range(chooser.randint(1, 4)):
        place = chooser.randrange(len(sent) + 1)
        end = min(place + chooser.choice((1, 1, 4, 20, 100)), len(sent))
        match chooser.randrange(8):
            case 0 if place < len(sent):
                sent[place] ^= 1 << chooser.randrange(8)
            case 1:
                del sent[place:end]
            case 2:
                sent[place:place] = sent[place:end]
            case 3:
                del sent[place:]
            case 4:
                other = chooser.choice(SEEDS)
                sent[place:] = other[chooser.randrange(len(other)) :]
            case 5:  # a line goes elsewhere
                lines = sent.split(b"\r\n")
                lines.insert(chooser.randrange(len(lines)), lines[chooser.randrange(len(lines))])
                sent = bytearray(b"\r\n").join(lines)
            case 6:  # another number
                numbers = list(re.finditer(rb"\d+", sent))
                if numbers:
                    found = chooser.choice(numbers)
                    sent[found.start() : found.end()] = b"%d" % chooser.choice((0, 1, -1, 255, 2**31, 2**64))
            case _:
                sent[place : end if chooser.random() < 0.3 else place] = chooser.choice(PIECES)
    return bytes(sent)


class Transport(asyncio.Transport):
    """A connection that only keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 8000), "peername": ("127.0.0.1", 9)})
        self.written = bytearray()
        self.is_over = False

    def write(self, data: Any) -> None:
        assert not self.is_over or not data, "written after the end"
        self.written += data

    def write_eof(self) -> None:
        self.is_over = True

    close = abort = write_eof

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def exchange_once(server: ModelServer, pieces: list[bytes]) -> bytes:
    """Send pieces over a connection of its own, wait for what they ask, hang up, and return the answers.

    Raises:
        TimeoutError: a request is still being worked on long after its client hung up.
    """
    state, transport = ServerState(), Transport()
    protocol = PatientProtocol(server.config, state, {})
    protocol.connection_made(transport)
    for piece in pieces:
        if piece and not transport.is_over:
            protocol.data_received(piece)
            await asyncio.sleep(0)
    while state.tasks and not protocol.cycle.more_body:
        await _some_end(state)
    protocol.connection_lost(None)
    while state.tasks:
        await _some_end(state)
    return bytes(transport.written)


async def _some_end(state: ServerState) -> None:
    done, _ = await asyncio.wait(state.tasks, timeout=HANG_S, return_when=asyncio.FIRST_COMPLETED)
    if not done:
        raise TimeoutError


def problem_of(sent: bytes, received: bytes) -> str | None:
    """Return what is wrong with the answers to a connection."""
    try:
        answers = split_answers(received, is_head=b"HEAD" in sent)
    except (AssertionError, ValueError, KeyError) as error:
        return f"no row of answers: {type(error).__name__}: {error}"
    head = sent.replace(b"\r", b"").partition(b"\n\n")[0].lower()
    is_ambiguous = (
        b"\ncontent-length:" in head
        and b"\ntransfer-encoding:" in head
        and b"\n\n" in sent.replace(b"\r", b"")
    )
    for answer in answers:
        if answer.status in (500, 503):
            return f"status {answer.status}"
        if answer.status >= 400 and answer.tree is not None and not answer.tree["error"]["remedy"]:
            return "an error without a remedy"
    if is_ambiguous and answers and (answers[0].status < 400 or len(answers) > 1):
        return "an ambiguous request was answered"
    return None


@contextmanager
def kept_logs() -> Iterator[list[str]]:
    """Collect what is logged as an error, such as an exception in a task of the loop."""
    found: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    handler, root = Keep(logging.ERROR), logging.getLogger()
    root.addHandler(handler)
    try:
        yield found
    finally:
        root.removeHandler(handler)


def run(seconds: float, seed: int, most: int | None = None) -> tuple[int, dict[str, bytes], Counter[int]]:
    """Send mutated requests for so long; return their number, problems by an example, and first statuses."""
    settings = ServeSettings(max_upload_mb=0.2, max_pixels=100_000, timeout_s=4)
    server = ModelServer(Hosting(small_models(), settings))
    server.hosting.start()
    server.hosting.wait()
    chooser, problems, statuses = random.Random(seed), dict[str, bytes](), Counter[int]()
    memory, count = psutil.Process().memory_info, 0
    before = memory().rss  # a worker of the tests may hold much already

    async def work() -> None:
        nonlocal count
        server.config.load()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until and count != most:
            sent = mutate(chooser)
            cut = chooser.randrange(len(sent) + 1)
            logged.clear()
            try:
                received = await exchange_once(server, [sent[:cut], sent[cut:]])
                problem = problem_of(sent, received)
            except TimeoutError:
                received, problem = b"", f"no end within {HANG_S:g} s"
            if logged:
                problem = logged[0]
            if problem is None and count % 100 == 0 and memory().rss - before > MOST_MIB * 2**20:
                problem = f"{MOST_MIB:.0f} MiB more than at first"
            if problem is not None:
                problems.setdefault(problem, sent)
            statuses[int(received[9:12] or 0)] += 1
            count += 1

    with kept_logs() as logged:
        asyncio.run(work())
    server.hosting.close()
    return count, problems, statuses


def main() -> None:
    """Mutate, print, and exit with 1 where anything was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    count, problems, statuses = run(options.seconds, options.seed)
    for problem, sent in problems.items():
        print(f"{problem}\n  {sent!r:.2000}")
    print(f"{count} connections, {count / options.seconds:.0f} per second, {len(problems)} problems")
    print("first statuses:", dict(sorted(statuses.items())))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
