"""Measure what decoding images of every mode takes, at the largest size that is read, alone and in threads.

Writes each image without Pillow and reads it in a process of its own, as training does (to 224 x 224) and as
``vitrail check`` does. Prints the peak above the process before, and what it keeps afterwards.

    python benchmarks/image_memory.py [--threads 8]
"""

from __future__ import annotations

import argparse
import math
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

MODES = {  # colour type and bits of PNG, bytes of a pixel in the file
    "L": (0, 8, 1),
    "I;16": (0, 16, 2),
    "RGB": (2, 8, 3),
    "RGB, 16 bits": (2, 16, 6),
    "P with alpha": (3, 8, 1),
    "LA": (4, 8, 2),
    "LA, 16 bits": (4, 16, 4),
    "RGBA": (6, 8, 4),
    "RGBA, 16 bits": (6, 16, 8),
}
CHILD = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from vitrail.core.errors import DataError
from vitrail.data.inspection import inspect_image
from vitrail.data.preprocessing import Preprocessing
def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith(name))
path, what, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
before, said = status("VmRSS"), set()
def read(_):
    try:
        if what == "train":
            Preprocessing(image_size=(224, 224)).read(path)
        elif error := inspect_image(path, path.name).error:
            said.add(error)
    except DataError as error:
        said.add(error.given)
with ThreadPoolExecutor(threads) as pool:
    list(pool.map(read, range(threads)))
print(f"{status('VmHWM') - before:.0f} {status('VmRSS') - before:.0f} {'; '.join(said)}")
"""


def write_png(path: Path, mode: str, side: int) -> None:
    """Write a black image with an alpha of zero, where there is one."""
    colour_type, bits, size = MODES[mode]

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    packer, row = zlib.compressobj(1), bytes(1 + side * size)
    pixels = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    palette = chunk(b"PLTE", bytes(6)) + chunk(b"tRNS", b"\x00\x80") if colour_type == 3 else b""
    header = struct.pack(">2I5B", side, side, bits, colour_type, 0, 0, 0)
    content = chunk(b"IHDR", header) + palette + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


def main() -> None:
    """Print a line for each mode, use and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--pixels", type=int, default=178_000_000)
    parser.add_argument("--modes", default=",".join(MODES).replace(", 16", " 16"))
    given = parser.parse_args()
    print("mode            pixels, million  use    threads  peak MB  kept MB  answer")
    for mode in [mode for mode in MODES if mode.replace(", 16", " 16") in given.modes.split(",")]:
        with tempfile.TemporaryDirectory() as folder:
            path, size = Path(folder, "image.png"), given.pixels / 1e6
            write_png(path, mode, math.isqrt(given.pixels))
            for what, threads in (("train", 1), ("check", 1), ("train", given.threads)):
                arguments = [sys.executable, "-c", CHILD, str(path), what, str(threads)]
                answer = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
                peak, kept, said = answer.rstrip("\n").split(" ", 2)
                said = said.replace(str(path), "it")
                print(
                    f"{mode:15} {size:15.0f}  {what}  {threads:7}  {peak:>7}  {kept:>7}  {said}", flush=True
                )


if __name__ == "__main__":
    main()
