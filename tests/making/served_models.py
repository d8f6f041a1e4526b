"""Small models behind a server: one of each kind, and a server in a thread that listens at a free port."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from making.bright_boxes import bright_detector
from making.colour_clip import load_colour_clip
from making.image_folders import encode
from making.small_models import small_captioner
from making.small_translators import small_translator
from vitrail.data.preprocessing import Preprocessing
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.serve.hosting import Hosting, Source
from vitrail.serve.running import address_of, bind
from vitrail.serve.server import ModelServer
from vitrail.serve.settings import ServeSettings

WAIT_S = 30.0  # far more than a thread takes to start on a loaded machine
NAMES = ["blue", "green", "red"]
CHANGES = {
    "image_size": (12, 8),
    "patch_size": 4,
    "stem": "patch",
    "width": 16,
    "depth": 2,
    "num_heads": 2,
    "num_classes": 3,
}


def small_classifier() -> LoadedModel:
    """Return a ViT with the weights that its seed gives."""
    torch.manual_seed(3)
    return LoadedModel(
        build("vit_nano", **CHANGES).eval(),
        model_settings("vit_nano", **CHANGES),
        Preprocessing(image_size=(12, 8)).model_dump(mode="json"),
        NAMES,
        {},
    )


def small_models() -> dict[str, Source]:
    """Return a model of each kind by its name."""
    return {
        "colours": small_classifier(),
        "boxes": bright_detector(),
        "says": small_captioner(),
        "any": load_colour_clip(),
        "en-de": small_translator(),
    }


def picture(seed: int = 0, size: tuple[int, int] = (21, 34), kind: str = "PNG") -> bytes:
    """Return an encoded image of random pixels, of some width and height."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return encode(pixels, kind)


def png_bomb(width: int, height: int) -> bytes:
    """Return a PNG that claims to be of some size and holds next to nothing."""

    def chunk(name: bytes, content: bytes) -> bytes:
        checked = name + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99)))


class Gate:
    """A model that computes nothing until it is let go, and remembers its batches."""

    def __init__(self, answer: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self.may_go, self.has_begun = threading.Event(), threading.Event()
        self.batches: list[list[Any]] = []
        self._answer = answer

    def __call__(self, works: Sequence[Any]) -> Sequence[Any]:
        self.has_begun.set()
        assert self.may_go.wait(WAIT_S)
        self.batches.append(list(works))
        return self._answer(works)


@contextmanager
def running(sources: Mapping[str, Source], **settings: object) -> Iterator[tuple[str, ModelServer]]:
    """Serve models in a thread, and yield the address once all of them are ready or have failed."""
    chosen = ServeSettings.from_tree({"port": 0, **settings})
    server = ModelServer(Hosting(sources, chosen))
    with bind(chosen.host, chosen.port) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            server.hosting.wait()
            yield address_of(listener), server
        finally:
            server.should_exit = True
            thread.join(30)
    assert not thread.is_alive()


@contextmanager
def serving_process(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the command serve with the small classifier, and yield its address once it is ready."""
    with tempfile.TemporaryDirectory() as folder:
        small_classifier().save(Path(folder) / "model")
        command = [sys.executable, "-m", "vitrail", "serve", f"a={folder}", "--port", "0", *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        try:
            found = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
            assert found, "the server did not start"
            assert process.stdout.readline().startswith("ready")
            yield found[0], process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(WAIT_S)
            process.stdout.close()
