"""Upload images near the limit of pixels in every mode, and measure what memory the server takes and keeps.

PYTHONPATH=tests python tests/faults/large_uploads.py --at-once 4
"""

from __future__ import annotations

import argparse
import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
from PIL import Image

from making.served_models import serving_process

MODES = {"L": 1, "RGB": 3, "RGBA": 4, "LA": 2, "I;16": 2, "P": 1}
SIDE = 7000  # 49 million pixels
SETTLED_S = 1.0


def large_png(mode: str) -> bytes:
    """Return a PNG of one colour, which is small as a file."""
    image = Image.frombytes(mode, (SIDE, SIDE), bytes(SIDE * SIDE * MODES[mode]))
    if mode == "P":
        image.putpalette([0, 0, 0] * 256)
    encoded = io.BytesIO()
    image.save(encoded, "PNG", compress_level=1, **({"transparency": bytes(256)} if mode == "P" else {}))
    return encoded.getvalue()


def main() -> None:
    """Upload and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--at-once", type=int, default=4)
    options = parser.parse_args()
    with serving_process("--timeout", "120") as (url, process), ThreadPoolExecutor(options.at_once) as pool:
        server = psutil.Process(process.pid)

        def resident() -> float:
            return server.memory_info().rss / 2**20

        print(f"ready: {resident():.0f} MiB")
        for mode in MODES:
            content, peaks, is_over = large_png(mode), [resident()], threading.Event()

            def watch(peaks: list[float] = peaks, is_over: threading.Event = is_over) -> None:
                while not is_over.wait(0.01):
                    peaks.append(resident())

            watcher = threading.Thread(target=watch)
            watcher.start()
            headers = {"content-type": "image/png"}
            sent = [
                pool.submit(httpx.post, f"{url}/predict", content=content, headers=headers, timeout=120)
                for _ in range(options.at_once)
            ]
            statuses = sorted(each.result().status_code for each in sent)
            is_over.set()
            watcher.join()
            time.sleep(SETTLED_S)
            print(
                f"{mode:5} {len(content) / 1e6:5.1f} MB, {options.at_once} at once {statuses}: "
                f"peak {max(peaks):.0f} MiB, then {resident():.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
