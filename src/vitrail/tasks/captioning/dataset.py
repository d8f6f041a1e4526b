"""The typed form of captioned images, and how readers build it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.dataset import DividedDataset, ImageSplit
from vitrail.data.file_places import ImageFinder, relative_name
from vitrail.data.findings import Finding, FindingTexts, number_of
from vitrail.data.splits import SplitName

TEXTS = FindingTexts(__file__)
SPACES = re.compile(r"\s+")


class CaptionSplit:
    """Images with captions; each image is a file, encoded bytes or decoded pixels.

    Args:
        images: as for ``ImageSplit``.
        captions: at least one per image, none empty.
        names: for messages and reports, unique within the data set.
    """

    def __init__(
        self, images: Sequence[Any] | np.ndarray, captions: Sequence[Sequence[str]], names: Sequence[str]
    ) -> None:
        assert len(images) == len(captions) == len(names), "images, captions and names differ in length"
        self.unlabelled = ImageSplit(images, np.zeros(len(names), dtype=np.int64), names)
        self.captions = tuple(tuple(texts) for texts in captions)
        assert all(self.captions), "an image without captions is not a sample"

    @property
    def images(self) -> Sequence[Any] | np.ndarray:
        return self.unlabelled.images

    @property
    def contents(self) -> Sequence[Any] | np.ndarray:
        return self.images

    @property
    def names(self) -> tuple[str, ...]:
        return self.unlabelled.names

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def num_captions(self) -> int:
        return sum(map(len, self.captions))

    def take(self, indices: Iterable[int] | np.ndarray) -> CaptionSplit:
        chosen = [int(index) for index in indices]
        content = self.unlabelled.take(chosen)
        return CaptionSplit(content.images, [self.captions[index] for index in chosen], content.names)

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any caption, name or pixel in memory.

        Of files, the size and the first 64 KiB are hashed.
        """
        digest = hashlib.blake2b(self.image_fingerprint.encode(), digest_size=8)
        for texts in self.captions:
            # surrogates: like file names, a caption may hold undecodable bytes
            digest.update(f"{len(texts)}\n".encode() + "\n".join(texts).encode(errors="surrogatepass"))
        return digest.hexdigest()

    @property
    def image_fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any image or name, but not with captions."""
        return self.unlabelled.fingerprint


@dataclass(frozen=True, kw_only=True)
class CaptionDataset(DividedDataset[CaptionSplit]):
    """Captioned images, divided into train, validation and test."""


@dataclass
class RawCaptions:
    """A data set as divided by its source, before missing splits are carved out; readers fill it."""

    findings: list[Finding] = field(default_factory=list)
    splits: dict[SplitName, CaptionSplit] = field(default_factory=dict)
    without_image: list[str] = field(default_factory=list)
    """Missing images that captions refer to."""
    without_captions: list[str] = field(default_factory=list)
    """Images without a non-empty caption."""
    empty: list[str] = field(default_factory=list)
    """Captions without a letter or digit, by image and index."""

    def add(
        self, split: SplitName, images: Sequence[Any], captions: Sequence[Sequence[Any]], names: Sequence[str]
    ) -> None:
        """Add the images of a split that have captions, with white space normalised.

        Args:
            images: as for ``CaptionSplit``.
            captions: per image; what is not text, or holds no letter or digit, counts as empty.
        """
        kept, written = [], []
        for index, (texts, name) in enumerate(zip(captions, names, strict=True)):
            cleaned = [_clean(text) for text in texts]
            self.empty += [f"{name}#{number}" for number, text in enumerate(cleaned) if not text]
            if present := [text for text in cleaned if text]:
                kept.append(index)
                written.append(present)
            else:
                self.without_captions.append(name)
        content = ImageSplit(images, np.zeros(len(names), dtype=np.int64), names)
        if len(kept) < len(names):
            content = content.take(kept)
        if kept:
            self.splits[split] = CaptionSplit(content.images, written, content.names)

    def add_files(
        self,
        split: SplitName,
        by_name: Mapping[str, Sequence[Any]],
        finder: ImageFinder,
        root: Path,
        *,
        where: Path,
    ) -> None:
        """Add the image files of a split that captions name.

        Raises:
            DataError: there are captions, but none of their images.
        """
        found = {name: file for name in by_name if (file := finder.find(name)) is not None}
        absent = [name for name in by_name if name not in found]
        self.without_image += absent
        if absent and not found:
            raise DataError(
                f"{where} has captions of {number_of(len(absent), 'image')} that cannot be found, such as "
                f"{absent[0]!r}",
                expected=f"the images in {root} or in a folder inside it",
                remedy="Put the images there, or correct their names",
            )
        files, captions = [*found.values()], [by_name[name] for name in found]
        self.add(split, files, captions, [relative_name(file, root) for file in files])

    def finish(self, finders: Sequence[ImageFinder], root: Path, *, where: Path | str) -> RawCaptions:
        """Report what is left out: captions and images without the other, and empty captions.

        Raises:
            DataError: no image has a caption.
        """
        used = {file for finder in finders for file in finder.found}
        files = dict.fromkeys(file for finder in finders for file in finder.unlisted())
        self.without_captions += [relative_name(file, root) for file in files if file not in used]
        if not self.splits:
            number = len(self.empty)
            raise DataError(
                f"{where} has no image with a caption"
                + (f", {number_of(number, 'caption')} without a word" if number else ""),
                expected="at least one image with a caption",
                remedy="Write captions; 'vitrail predict' needs none",
            )
        self.findings += TEXTS.listed("captions-without-image", self.without_image)
        self.findings += TEXTS.listed("images-without-captions", self.without_captions)
        self.findings += TEXTS.listed("empty-captions", self.empty)
        return self


def _clean(text: Any) -> str:
    """Normalise a caption to one line; empty if it has no letter or digit."""
    if not isinstance(text, str):
        return ""
    cleaned = SPACES.sub(" ", text).strip()
    return cleaned if any(character.isalnum() for character in cleaned) else ""
