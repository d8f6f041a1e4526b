"""Load a server for long with good requests, malformed ones, bombs and slow clients, and watch its memory.

    PYTHONPATH=tests python tests/faults/soak.py --requests 100000

Every good request must get the first one's result, every other one a 4xx that says what to do. Memory is
compared after a warm-up: the last quarter of the requests with the second. At the end the server is
stopped, and must end with exit code 0.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gzip
import io
import json
import random
import statistics
import sys
import time
import zipfile
import zlib
from collections import Counter
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil

from making.served_models import picture, png_bomb, serving_process

SLOW_S = 0.5  # between two bytes of a slow client
READ_AT_ONCE = 65_536
TOP = "/predict?top=3"


class Sent(NamedTuple):
    """A kind of request."""

    kind: str
    content_type: str
    body: bytes
    statuses: tuple[int, ...]
    """Any of which is right."""
    headers: str = ""


def _zip() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.png", bytes(3_000_000))
    return archive.getvalue()


def _text_bomb(image: bytes) -> bytes:
    """Return a PNG with a compressed text of 20 MB."""
    chunk = b"zTXtx\0\0" + zlib.compress(bytes(20_000_000))
    length, checksum = (len(chunk) - 4).to_bytes(4), zlib.crc32(chunk).to_bytes(4)
    return image[:33] + length + chunk + checksum + image[33:]


def requests_to_send() -> tuple[list[Sent], list[Sent]]:
    """Return good requests and others."""
    images = [picture(seed, size) for seed, size in enumerate(((21, 34), (64, 48), (90, 70), (160, 120)))]
    encoded = base64.b64encode(images[0]).decode()
    form = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n%s\r\n--x--\r\n'
    kind, as_json, as_form = "image/png", "application/json", "multipart/form-data; boundary=x"
    good = [Sent(f"image {number}", kind, image, (200,)) for number, image in enumerate(images)]
    good.append(Sent("JSON", as_json, json.dumps({"image": encoded}).encode(), (200,)))
    good.append(Sent("form", as_form, form % images[1], (200,)))
    others = [
        Sent("cut off", kind, images[2][:999], (422,)),
        Sent("no image", kind, b"no image", (422,)),
        Sent("bomb of pixels", kind, png_bomb(100_000, 100_000), (413,)),
        Sent("bomb of text", kind, _text_bomb(images[0]), (200, 413, 422)),
        Sent("zip", "application/zip", _zip(), (415,)),
        Sent("gzip", kind, gzip.compress(images[0]), (422,), "Content-Encoding: gzip\r\n"),
        Sent("deep JSON", as_json, b"[" * 100_000, (400,)),
        Sent("wide JSON", as_json, b'{"images": [' + b'"",' * 200_000 + b'""]}', (413,)),
        Sent("half JSON", as_json, b'{"image": "', (400,)),
        Sent("half a surrogate pair", as_json, b'{"image": "", "\\ud83d": 1}', (422,)),
        Sent("no base64", as_json, b'{"image": "%"}', (422,)),
        Sent(
            "many parts", as_form, b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n" * 999, (400,)
        ),
        Sent("half a form", as_form, form[:40], (400, 422)),
        Sent("option", as_json, json.dumps({"image": encoded, "top": -1}).encode(), (422,)),
        Sent("two lengths", kind, b"abc", (400,), "Content-Length: 3\r\n"),
        Sent("length and coding", kind, b"abc", (400,), "Transfer-Encoding: chunked\r\n"),
        Sent("folded", kind, b"abc", (400,), "X: a\r\n b\r\n"),
        Sent("other host's page", kind, images[0], (403,), "Origin: http://evil.example\r\n"),
        Sent("nothing", kind, b"", (400,)),
    ]
    return good, others


class Soak:
    """What is sent and what came of it.

    Args:
        most: number of requests.
        seconds: after which no more are sent.
    """

    def __init__(
        self, url: str, most: int, seconds: float, bad: float, server: psutil.Process | None
    ) -> None:
        self.place, self.most, self.bad, self.server = urlsplit(url), most, bad, server
        self.good, self.others = requests_to_send()
        self.until = time.perf_counter() + seconds
        self.chooser = random.Random(0)
        self.num_sent = 0
        self.found: Counter[tuple[str, int]] = Counter()
        self.wrong: Counter[str] = Counter()
        self.results: dict[str, Any] = {}
        self.resident: list[float] = []

    async def run(self, num_clients: int, num_slow: int) -> None:
        """Send everything."""
        slow = [asyncio.create_task(self._be_slow(number)) for number in range(num_slow)]
        await asyncio.gather(*(self._send() for _ in range(num_clients)))
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)

    def growth(self) -> float:
        """Return how much more memory the last quarter of requests took than the second, as a share."""
        quarter = len(self.resident) // 4
        second, last = self.resident[quarter : 2 * quarter], self.resident[3 * quarter :]
        return statistics.median(last) / statistics.median(second) - 1

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.place.hostname, self.place.port)

    async def _send(self) -> None:
        reader, writer = await self._connect()
        while self.num_sent < self.most and time.perf_counter() < self.until:
            if self.server is not None and self.num_sent % max(self.most // 400, 1) == 0:
                self.resident.append(self.server.memory_info().rss / 2**20)
            self.num_sent += 1
            sent = self.chooser.choice(self.others if self.chooser.random() < self.bad else self.good)
            head = (
                f"POST {TOP} HTTP/1.1\r\nHost: {self.place.netloc}\r\nContent-Type: {sent.content_type}\r\n"
            )
            writer.write(f"{head}{sent.headers}Content-Length: {len(sent.body)}\r\n\r\n".encode() + sent.body)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines[1:] if line)
            tree = json.loads(await reader.readexactly(int(headers["content-length"])))
            self._check(sent, int(lines[0].split()[1]), tree)
            if headers.get("connection") == "close":
                writer.close()
                reader, writer = await self._connect()
        writer.close()

    def _check(self, sent: Sent, status: int, tree: Any) -> None:
        self.found[sent.kind, status] += 1
        if status not in sent.statuses:
            self.wrong[f"{sent.kind}: {status} {tree}"] += 1
        elif status != 200:
            assert tree["error"]["remedy"], tree
        elif sent.kind in self.results and tree["results"][0]["class"] != self.results[sent.kind]:
            self.wrong[f"{sent.kind}: another class"] += 1
        else:
            self.results[sent.kind] = tree["results"][0]["class"]

    async def _be_slow(self, number: int) -> None:
        """Send a head, or a body, byte by byte, or read nothing; begin again where the server ends it."""
        head = f"POST /explain HTTP/1.1\r\nHost: {self.place.netloc}\r\nContent-Type: image/png\r\n".encode()
        body = self.good[0].body
        whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        while True:
            _, writer = await self._connect()
            quick = (0, len(whole) - len(body), len(whole))[number % 3]
            try:
                writer.write(whole[:quick])
                for place in range(quick, len(whole) + 99):
                    writer.write(whole[place : place + 1])
                    await writer.drain()
                    await asyncio.sleep(SLOW_S)
            except OSError:
                self.found["slow, cut off", 0] += 1
            finally:
                writer.close()


def main() -> None:
    """Load a server, print what came, and exit with 1 where something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=3600, help="after which no more requests are sent")
    parser.add_argument(
        "--bad", type=float, default=0.1, help="share of requests that are malformed or bombs"
    )
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--slow", type=int, default=12, help="slow clients beside them")
    options = parser.parse_args()
    with serving_process("--queue", "256") as (url, process):
        server = psutil.Process(process.pid)
        soak = Soak(url, options.requests, options.seconds, options.bad, server)
        began = time.perf_counter()
        asyncio.run(soak.run(options.clients, options.slow))
        seconds = time.perf_counter() - began
        process.terminate()
        code = process.wait(60)
    for (kind, status), count in sorted(soak.found.items()):
        print(f"  {kind:24} {status:4} {count:8}")
    for what, count in soak.wrong.items():
        print(f"wrong, {count} times: {what:.300}")
    resident, growth = soak.resident, soak.growth()
    print(f"{soak.num_sent} requests in {seconds:.0f} s, {sum(soak.wrong.values())} wrong, exit code {code}")
    print(f"memory {resident[0]:.0f} MiB, at most {max(resident):.0f}, at the end {resident[-1]:.0f}")
    print(f"last quarter over the second: {100 * growth:+.2f} %")
    sys.exit(bool(soak.wrong or code or growth >= 0.01))


if __name__ == "__main__":
    main()
