"""Stop a server under load, and count the requests that were sent and got no answer.

    PYTHONPATH=tests python tests/faults/stopping.py --tries 20 --connections 72

Half of the clients keep their connections and send the next request once they have an answer, or after a
short rest; the others connect anew for each. A request is lost where it was written to a connection that the
server had accepted, and had not announced to close, and no whole answer came back.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from urllib.parse import urlsplit

from making.served_models import picture, serving_process

RESTS_S = (0.0, 0.0, 0.05, 0.5)  # of a client between an answer and its next request
LOAD_S = 1.0  # until the server is told to stop


class Connection:
    """One connection to a server, which reads whole answers.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        self.place = urlsplit(url)
        self.is_ending = False

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(self.place.hostname, self.place.port)
        self.is_ending = False

    async def ask(self, body: bytes) -> int:
        """Send an image and return the status of the answer."""
        head = f"POST /predict HTTP/1.1\r\nHost: {self.place.netloc}\r\nContent-Type: image/png\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        await self.reader.readexactly(int(headers["content-length"]))
        self.is_ending = headers.get("connection") == "close"
        return int(lines[0].split()[1])

    def close(self) -> None:
        self.writer.close()


async def send_until_refused(url: str, rest_s: float, *, is_kept: bool, found: Counter[str]) -> None:
    """Send requests until the server takes no more connections."""
    connection, body = Connection(url), picture()
    while True:
        try:
            await connection.open()
        except OSError:  # told so before anything was sent
            return
        try:
            while True:
                status = await connection.ask(body)
                found[f"answered {status}"] += 1
                if connection.is_ending or not is_kept:
                    break
                await asyncio.sleep(rest_s)
        except (OSError, asyncio.IncompleteReadError):
            found["lost, kept" if is_kept else "lost, new"] += 1
        finally:
            connection.close()


async def stop_under_load(url: str, stop: Callable[[], None], num_connections: int) -> Counter[str]:
    """Send requests from so many clients, stop the server after a moment, and count what came of them."""
    found: Counter[str] = Counter()
    chooser = random.Random(0)
    clients = [
        send_until_refused(url, chooser.choice(RESTS_S), is_kept=number % 2 == 0, found=found)
        for number in range(num_connections)
    ]
    running = asyncio.gather(*clients)
    await asyncio.sleep(LOAD_S)
    stop()
    await running
    return found


def main() -> None:
    """Stop servers, and print what was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--connections", type=int, default=72)
    options = parser.parse_args()
    total: Counter[str] = Counter()
    for _ in range(options.tries):
        with serving_process("--queue", "512") as (url, process):
            found = asyncio.run(stop_under_load(url, process.terminate, options.connections))
            began = time.perf_counter()
            code = process.wait(60)
        print(dict(found), f"exit code {code}, {time.perf_counter() - began:.1f} s later", flush=True)
        total += found
    lost = sum(count for what, count in total.items() if what.startswith("lost"))
    print(f"{options.tries} tries: {dict(total)}, {lost} lost")


if __name__ == "__main__":
    main()
