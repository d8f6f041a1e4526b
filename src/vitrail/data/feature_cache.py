"""Features of a frozen encoder, computed once and kept in a file that is read by index."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float16, UInt8
from torch import Tensor

from vitrail.core.durable import explained, locked
from vitrail.core.duration import format_duration
from vitrail.core.errors import DataError
from vitrail.core.files import expand
from vitrail.data.dataset import Progress
from vitrail.data.source import ImageSource

Encode = Callable[[UInt8[Tensor, "batch 3 height width"]], Float[Tensor, "batch tokens dim"]]
CACHE_VARIABLE = "VITRAIL_CACHE"
LONG_S = 10.0  # a computation that takes longer is announced

_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return where features are kept: ``VITRAIL_CACHE``, or ``vitrail`` in the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return expand(given) if given else expand(home) / "vitrail"


def digest_of(*parts: str | bytes) -> str:
    """Return the name of a feature file that depends on every part."""
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        content = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        digest.update(hashlib.blake2b(content, digest_size=16).digest())
    return digest.hexdigest()


class FeatureCache:
    """The features of every image of a source, in half precision, in one file.

    The file grows image by image, so that an interrupted computation resumes; when it is complete it gets its
    name. Of several processes one computes, and the others wait for it.

    Args:
        images: read without augmentation.
        encode: computes the features of a batch of pixels; called in this process.
        path: must differ between images, preparations and encoders.
        shape: tokens of an image, and width of a token.
    """

    def __init__(
        self,
        images: ImageSource,
        encode: Encode,
        *,
        path: Path,
        shape: tuple[int, int],
        batch_size: int = 16,
        progress: Progress | None = None,
    ) -> None:
        self.images, self.path, self.shape = images, path, shape
        self._encode, self._batch_size, self._progress = encode, batch_size, progress
        self._features: np.memmap | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_bytes(self) -> int:
        return len(self) * self._image_bytes

    def prepare(self) -> None:
        """Compute what is missing; the second call does nothing.

        Raises:
            DataError: an image cannot be read, or the file has an unexpected size.
            CheckpointError: the disk is full or not writable.
        """
        if self._features is not None or not len(self):
            return
        if not self.path.exists():
            with explained(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with locked(self.path.with_suffix(".lock"), waits=True):
                    if not self.path.exists():
                        self._compute()
        if self.path.stat().st_size != self.num_bytes:
            raise DataError(
                f"{self.path} has {self.path.stat().st_size:,} bytes",
                expected=f"{self.num_bytes:,}, the features of {len(self)} images",
                remedy="Remove the file; it is computed again",
            )
        self._features = np.memmap(self.path, dtype=np.float16, mode="r", shape=(len(self), *self.shape))

    def load(self, index: int) -> Float16[Tensor, "tokens dim"]:
        self.prepare()
        assert self._features is not None
        return torch.from_numpy(np.array(self._features[index]))

    def __getstate__(self) -> dict[str, object]:
        """Pickle for worker processes, which only read, without the encoder and the file's content."""
        return {**self.__dict__, "_features": None, "_encode": None}

    @property
    def _image_bytes(self) -> int:
        return 2 * self.shape[0] * self.shape[1]

    def _compute(self) -> None:
        """Append the features of the images that the unfinished file lacks, then give it its name."""
        partial = self.path.with_suffix(".partial")
        done = partial.stat().st_size // self._image_bytes if partial.exists() else 0
        with partial.open("r+b" if done else "wb") as file:
            file.truncate(done * self._image_bytes)
            file.seek(done * self._image_bytes)
            began = time.monotonic()
            for start in range(done, len(self), self._batch_size):
                indices = range(start, min(start + self._batch_size, len(self)))
                pixels = torch.stack([self.images.load(index, None).image for index in indices])
                features = self._encode(pixels).detach().to(torch.float16).cpu()
                assert tuple(features.shape[1:]) == self.shape, "the encoder makes other tokens"
                file.write(features.contiguous().numpy().tobytes())
                if start == done:
                    left, batch_s = len(self) - done, time.monotonic() - began
                    if (seconds := batch_s * left / self._batch_size) > LONG_S:
                        _log.warning(
                            "computing the features of %s images once, about %s; they are kept in %s",
                            *(f"{left:,}", format_duration(seconds), self.path),
                        )
                if self._progress is not None:
                    self._progress(indices.stop, len(self))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)
