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
from vitrail.data.findings import Finding, number_of
from vitrail.data.splits import SplitName


class CaptionSplit:
    """Images with captions; each image is a file, encoded bytes or decoded pixels.

    Args:
        images: a sequence of ``Path``, ``bytes`` or uint8 arrays ``height width [3]``, or one array ``n
            height width [3]``.
        captions: at least one per image, none empty.
        names: for messages and reports, unique within the data set.
    """

    def __init__(
        self, images: Sequence[Any] | np.ndarray, captions: Sequence[Sequence[str]], names: Sequence[str]
    ) -> None:
        assert len(images) == len(captions) == len(names), "images, captions and names differ in length"
        self._content = ImageSplit(images, np.zeros(len(names), dtype=np.int64), names)
        self.captions = tuple(tuple(texts) for texts in captions)
        assert all(self.captions), "an image without captions is no sample"

    @property
    def images(self) -> Sequence[Any] | np.ndarray:
        return self._content.images

    @property
    def names(self) -> tuple[str, ...]:
        return self._content.names

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def num_captions(self) -> int:
        """Number of captions of all images."""
        return sum(map(len, self.captions))

    def take(self, indices: Iterable[int] | np.ndarray) -> CaptionSplit:
        chosen = np.asarray(indices if isinstance(indices, np.ndarray) else list(indices), dtype=np.int64)
        content = self._content.take(chosen)
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
        return self._content.fingerprint


@dataclass(frozen=True)
class CaptionFacts:
    """What readers noticed beside the samples, for the doctor to judge."""

    captions_without_image: tuple[str, ...] = ()
    """Missing images that captions refer to; their captions are left out."""
    images_without_captions: tuple[str, ...] = ()
    """Images without a non-empty caption; left out."""
    empty_captions: tuple[str, ...] = ()
    """Captions without a letter, by image and index; left out."""


@dataclass(frozen=True, kw_only=True)
class CaptionDataset(DividedDataset[CaptionSplit]):
    """Captioned images, divided into train, validation and test."""

    facts: CaptionFacts = field(default_factory=CaptionFacts)


@dataclass(frozen=True)
class RawCaptions:
    """A data set as divided by its source, before missing splits are carved out."""

    splits: Mapping[SplitName, CaptionSplit]
    findings: tuple[Finding, ...] = ()
    facts: CaptionFacts = field(default_factory=CaptionFacts)


SPACES = re.compile(r"\s+")


@dataclass
class CaptionCollector:
    """Collects captions while reading, and records what is left out."""

    without_image: list[str] = field(default_factory=list)
    without_captions: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def split(
        self, images: Sequence[Any], captions: Sequence[Sequence[Any]], names: Sequence[str]
    ) -> CaptionSplit:
        """Return the images that have captions, with white space normalised.
        images: as in ``CaptionSplit``.
        captions: per image; what is not text, or holds no letter or digit, counts as empty.
        """
        kept, written = [], []
        for place, (texts, name) in enumerate(zip(captions, names, strict=True)):
            cleaned = [_clean(text) for text in texts]
            self.empty += [f"{name}#{number}" for number, text in enumerate(cleaned) if not text]
            present = [text for text in cleaned if text]
            if present:
                kept.append(place)
                written.append(present)
            else:
                self.without_captions.append(name)
        if len(kept) == len(names):
            return CaptionSplit(images, written, names)
        content = ImageSplit(images, np.zeros(len(names), dtype=np.int64), names).take(kept)
        return CaptionSplit(content.images, written, content.names)

    def files(
        self, by_name: Mapping[str, Sequence[Any]], finder: ImageFinder, root: Path, *, where: str
    ) -> CaptionSplit:
        """Return the image files that captions name.

        Args:
            by_name: captions by image name, as annotated.
            root: names are relative to this folder.
            where: source of the captions, for error messages.

        Raises:
            DataError: there are captions, but none of their images.
        """
        images, captions, names = [], [], []
        absent: list[str] = []
        for called, texts in by_name.items():
            file = finder.find(called)
            if file is None:
                absent.append(called)
                continue
            images.append(file)
            captions.append(texts)
            names.append(relative_name(file, root))
        self.without_image += absent
        if absent and not images:
            raise DataError(
                f"{where} has captions of {number_of(len(absent), 'image')} that cannot be found, such as "
                f"{absent[0]!r}",
                expected=f"the images in {root} or in a folder inside it",
                remedy="Put the images there, or correct their names",
            )
        return self.split(images, captions, names)

    def unlisted(self, finders: Iterable[ImageFinder], root: Path) -> None:
        """Record the images beside captioned ones that have no captions."""
        used = {file for finder in finders for file in finder.found}
        files = dict.fromkeys(file for finder in finders for file in finder.unlisted())
        self.without_captions += [relative_name(file, root) for file in files if file not in used]

    def result(self, splits: Mapping[SplitName, CaptionSplit], *, where: str) -> RawCaptions:
        """Return everything that was read.

        Raises:
            DataError: no image has a caption.
        """
        if not any(len(split) for split in splits.values()):
            number = len(self.empty)
            raise DataError(
                f"{where} has no image with a caption"
                + (f", {number_of(number, 'caption')} without a word" if number else ""),
                expected="at least one image with a caption",
                remedy="Write captions; 'vitrail predict' needs none",
            )
        kept: dict[SplitName, CaptionSplit] = {name: split for name, split in splits.items() if len(split)}
        facts = CaptionFacts(tuple(self.without_image), tuple(self.without_captions), tuple(self.empty))
        return RawCaptions(kept, tuple(self.findings), facts)


def _clean(text: Any) -> str:
    """Normalise a caption to one line; empty if it has no letter or digit."""
    if not isinstance(text, str):
        return ""
    cleaned = SPACES.sub(" ", text).strip()
    return cleaned if any(character.isalnum() for character in cleaned) else ""
