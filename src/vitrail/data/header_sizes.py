"""The sizes of many images from their headers alone, without decoding them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Int64

from vitrail.core.errors import DataError
from vitrail.data.images import open_image, upright_size

CHUNK = 64  # images that one thread takes at a time


def read_header_sizes(images: Sequence[Any]) -> Int64[np.ndarray, "images 2"]:
    """Return height and width of each upright image (file or bytes); 0 0 if its header cannot be read."""
    sizes = np.zeros((len(images), 2), dtype=np.int64)

    def read_chunk(start: int) -> None:
        for index in range(start, min(start + CHUNK, len(images))):
            try:
                with open_image(images[index]) as image:
                    sizes[index] = upright_size(image)
            except DataError:  # the doctor tells why, once it decodes the image
                continue

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(read_chunk, range(0, len(images), CHUNK)))
    return sizes
