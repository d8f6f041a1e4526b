"""Checks of captioned images before training: errors, pitfalls, and facts worth knowing.

Nothing on disk is changed. Every check is a function of the examined data set that yields findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from vitrail.data.dataset import Progress
from vitrail.data.findings import Finding, Verdict, judge, number_of
from vitrail.data.image_checks import (
    find_conversions,
    find_missing_splits,
    find_odd_sizes,
    find_repeated,
    find_unreadable,
    find_wrong_suffixes,
)
from vitrail.data.inspection import SeenImages, count_sizes, inspect_splits
from vitrail.data.text.scripts import MARKUP, MOJIBAKE
from vitrail.data.text.words import caption_words
from vitrail.tasks.captioning.dataset import TEXTS, CaptionDataset, CaptionSplit
from vitrail.tasks.data_page import DataView, draw_image, plot_counts, plots_of_images

MIN_IMAGES = 2  # the loss compares images by their captions, which needs two
FEW_IMAGES = 1000  # a captioner from random weights learns to name little from fewer
MAX_WORDS = 60  # longer captions are texts about the image
COMMON_SHARE = 0.02  # of all images; a caption that frequent was written by a program
MIN_COMMON = 20  # images; a fraction means little in small sets


class SeenCaptions(SeenImages):
    """A caption data set with the inspection of each image."""

    dataset: CaptionDataset

    @cached_property
    def words(self) -> dict[str, list[list[list[str]]]]:
        """For each split, the words of each caption of each image."""
        return {
            name: [[caption_words(text) for text in texts] for texts in split.captions]
            for name, split in self.dataset.splits.items()
        }

    @property
    def counts(self) -> dict[str, Any]:
        splits = self.dataset.splits
        lengths = [len(words) for part in self.words.values() for texts in part for words in texts]
        distinct = {word for texts in self.words["train"] for words in texts for word in words}
        return {
            "images": {name: len(split) for name, split in splits.items()},
            "captions": {name: split.num_captions for name, split in splits.items()},
            "format": self.dataset.format,
            "words": {
                "mean": round(float(np.mean(lengths)), 2) if lengths else 0.0,
                "longest": max(lengths, default=0),
                "distinct in train": len(distinct),
            },
            "sizes": count_sizes(self),
        }


def check_captions(dataset: CaptionDataset, progress: Progress | None = None) -> Verdict:
    """Examine every image and every caption of every split; images that do not open are to be left out."""
    unlabelled = {name: split.unlabelled for name, split in dataset.splits.items()}
    examined = SeenCaptions(dataset, inspect_splits(unlabelled, progress))
    return judge(dataset, examined, CHECKS, exclude=examined.unreadable)


def view_captions(dataset: CaptionDataset) -> DataView:
    """Return what the doctor's page shows of captioned images."""

    def count(split: CaptionSplit) -> list[int]:
        return [len(caption_words(text)) for texts in split.captions for text in texts]

    return DataView(
        lambda split, index, _: draw_image(split, index, split.captions[index]),
        plots=[*plots_of_images(dataset), plot_counts(dataset, count, "words in a caption", "captions")],
    )


def find_too_few(examined: SeenCaptions) -> Iterator[Finding]:
    """No images for training or test, or too few to learn from."""
    usable = Counter(split for split, _, _, seen in examined.rows() if not seen.error)
    given, number = len(examined.dataset.train), usable["train"]
    if not number:
        yield TEXTS.finding("no-images" if given or not usable["test"] else "no-train")
    elif number < MIN_IMAGES:
        yield TEXTS.finding("one-image")
    elif number < FEW_IMAGES:
        yield TEXTS.finding("few-images", count=number, images=number_of(number, "training image"))
    if given and not usable["test"]:
        yield TEXTS.finding("no-test")


def find_uneven_numbers(examined: SeenCaptions) -> Iterator[Finding]:
    """Images with an unusual number of captions."""
    splits = examined.dataset.splits.values()
    numbers = {
        name: len(texts) for split in splits for name, texts in zip(split.names, split.captions, strict=True)
    }
    counts = Counter(numbers.values())
    if len(counts) > 1:
        usual = counts.most_common(1)[0][0]
        others = (f"{name} ({number})" for name, number in numbers.items() if number != usual)
        yield from TEXTS.listed("uneven-captions", others, usual=number_of(usual, "caption"))


def find_odd_captions(examined: SeenCaptions) -> Iterator[Finding]:
    """Texts that are not captions: very long, markup, damaged letters, one text for many images."""
    long_ones, marked, damaged, twice = [], [], [], []
    images_of: Counter[str] = Counter()
    for split, part in examined.words.items():
        data = examined.dataset.splits[split]
        for name, texts, words in zip(data.names, data.captions, part, strict=True):
            long_ones += [f"{name} ({len(each)} words)" for each in words if len(each) > MAX_WORDS]
            marked += [name] * any(MARKUP.search(text) for text in texts)
            damaged += [name] * any(not text.isascii() and MOJIBAKE.search(text) for text in texts)
            plain = {" ".join(each) for each in words}
            twice += [name] * (len(plain) < len(words))
            images_of.update(plain)
    total = sum(map(len, examined.words.values()))
    common = [
        f"{text!r} ({count})"
        for text, count in images_of.most_common()
        if count >= max(MIN_COMMON, COMMON_SHARE * total)
    ]
    yield from TEXTS.listed("long-captions", long_ones, words=MAX_WORDS)
    yield from TEXTS.listed("markup", marked)
    yield from TEXTS.listed("mojibake", damaged)
    yield from TEXTS.listed("common-captions", common)
    yield from TEXTS.listed("repeated-captions", twice)


def find_duplicates(examined: SeenCaptions) -> Iterator[Finding]:
    """Identical pixels in two splits, or repeated in training."""
    yield from find_repeated([(split, name) for split, _, name in group] for group in examined.equal_images)


CHECKS: tuple[Callable[[SeenCaptions], Iterator[Finding]], ...] = (
    find_unreadable,
    find_too_few,
    find_odd_captions,
    find_duplicates,
    find_uneven_numbers,
    find_missing_splits,
    find_wrong_suffixes,
    find_conversions,
    find_odd_sizes,
)
"""In the order of a verdict."""
