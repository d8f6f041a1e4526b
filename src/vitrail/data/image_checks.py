"""Checks of images and splits that several tasks share, as functions that yield findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations
from unicodedata import normalize

import numpy as np

from vitrail.data.findings import Finding, Severity, about, counted, joined, number_of, some_of
from vitrail.data.inspection import Examined, SeenImages

SMALL_PX = 8  # a shorter side below this shows next to nothing
LARGE_PIXELS = 25_000_000  # takes about a quarter of a second to decode
MAX_UNREADABLE = 0.5  # with a greater fraction of broken files, the data set is not what it was meant to be
LONG_NAME = 6  # letters; shorter words often have a neighbour of another meaning
MIN_PER_CLASS = 10  # training images; fewer hardly show the variation within a class
MANY_CLASSES = 20  # of which nothing can be learned where each has one training example
HEAVY_IMBALANCE = 10.0  # largest class over smallest
CONVERSIONS = {
    "grey": "grey, shown as three equal channels",
    "alpha": "transparent in parts, put on white",
    "sixteen-bit": "of more than 8 bits, scaled to 8",
    "palette": "in palette colours, converted to RGB",
    "cmyk": "in CMYK, converted to RGB",
    "rotated": "rotated by an Exif tag, turned upright",
    "animated": "of several frames, only the first is used",
}
FROM_VALIDATION = "the source's validation split"  # where a test comes from that the source does not name
OF_THE_SOURCE = ("from the source", FROM_VALIDATION)  # where a split comes from that was not drawn


def find_unreadable(examined: SeenImages) -> Iterator[Finding]:
    """Files that are missing, empty, truncated, too large or not images."""
    broken = dict(examined.unreadable)
    total = len(broken) + len(examined.seen)
    severity: Severity = "error" if len(broken) > MAX_UNREADABLE * total else "warning"
    lacking: dict[str, list[str]] = defaultdict(list)
    for _, _, name, seen in examined.rows():
        if seen.remedy:
            lacking[seen.remedy].append(name)
            del broken[name]
    for remedy, names in lacking.items():
        message = (
            f"{number_of(len(names), 'image')} of {total} in a format that the installed Pillow does not read"
        )
        yield from about(names, severity, "no-reader", message, f"{remedy}. Until then they are left out")
    yield from about(
        [reason if name in reason else f"{name}: {reason}" for name, reason in broken.items()],
        severity,
        "unreadable",
        f"{number_of(len(broken), 'image')} of {total} cannot be read",
        "They are left out; replace or remove them",
    )


def find_similar_names(examined: Examined) -> Iterator[Finding]:
    """Class names that differ only in case, spaces, hyphens or underscores, and long ones in one letter."""
    alike = defaultdict(list)
    for name in examined.class_names:
        plain = normalize("NFC", name.casefold())
        alike["".join(letter for letter in plain if letter not in " -_")].append(name)
    pairs = [" = ".join(map(repr, names)) for names in alike.values() if len(names) > 1]
    remedy = "Join these classes if they mean the same"
    yield from counted(pairs, "warning", "similar-class-names", "class name", "spelt in several ways", remedy)
    near, by_gap = set(), defaultdict(list)
    for word in filter(str.isalpha, alike):
        for i in range(len(word) if len(word) >= LONG_NAME else 0):
            by_gap[f"{word[:i]}?{word[i + 1 :]}"].append(word)
            if (shorter := word[:i] + word[i + 1 :]) in alike:
                near.add((shorter, word))
    near.update(pair for words in by_gap.values() for pair in combinations(words, 2))
    pairs = [f"{alike[first][0]!r} and {alike[second][0]!r}" for first, second in sorted(near)]
    message = f"class names that differ in one letter: {some_of(pairs, len(pairs))}"
    yield from about(pairs, "info", "near-class-names", message, "Nothing, unless one is misspelt")


def find_uneven_classes(examined: Examined) -> Iterator[Finding]:
    """Classes with too few training examples, and a largest one many times as large as the smallest."""
    train, names, things = examined.per_class["train"], examined.class_names, examined.things
    sizes = {index: f"{names[index]} ({train[index]})" for index in np.flatnonzero(train).tolist()}
    yield from counted(
        [text for index, text in sizes.items() if train[index] < MIN_PER_CLASS],
        "warning",
        "small-classes",
        "class",
        f"with fewer than {MIN_PER_CLASS} training {things}",
        "Collect more, or start from pretrained weights",
    )
    if len(sizes) > MANY_CLASSES and train.max() == 1:
        yield Finding(
            "error",
            "one-of-each-class",
            f"each of {len(sizes):,} classes has one training {things.removesuffix('s')}",
            f"Give several {things} of each class; of a table, check which column names the classes",
        )
    largest, smallest = max(sizes, key=train.item, default=0), min(sizes, key=train.item, default=0)
    if sizes and train[largest] >= HEAVY_IMBALANCE * train[smallest]:
        yield Finding(
            "warning",
            "imbalance",
            f"the largest class has {train[largest] / train[smallest]:.0f} times the {things} of the "
            "smallest",
            "Read the scores per class, as a mean hides small classes; collect more of them if they matter",
            (sizes[largest], sizes[smallest]),
        )


def find_wrong_suffixes(examined: SeenImages) -> Iterator[Finding]:
    """Files whose suffix does not match their format."""
    items = [f"{name} is {seen.other_format}" for name, seen in examined.seen if seen.other_format]
    remedy = "They are read by their content; rename them for other programs"
    yield from counted(
        items, "warning", "wrong-suffix", "file", "of another format than the suffix says", remedy
    )


def find_conversions(examined: SeenImages) -> Iterator[Finding]:
    """Images that need conversion to upright 8-bit RGB."""
    for trait, text in CONVERSIONS.items():
        names = [name for name, seen in examined.seen if trait in seen.traits]
        are = "is" if len(names) == 1 else "are"
        yield from counted(names, "info", trait, "image", f"{are} {text}", "Nothing to do")


def find_odd_sizes(examined: SeenImages) -> Iterator[Finding]:
    """Tiny or huge images, and varying sizes."""
    small = [name for name, seen in examined.seen if min(seen.height, seen.width) < SMALL_PX]
    message, remedy = f"with a side below {SMALL_PX} pixels", "Remove them if they are icons or mistakes"
    yield from counted(small, "warning", "small-images", "image", message, remedy)
    large = [name for name, seen in examined.seen if seen.height * seen.width > LARGE_PIXELS]
    message = f"above {LARGE_PIXELS // 1_000_000} megapixels, slow to decode"
    remedy = "Smaller copies train as well and faster"
    yield from counted(large, "info", "large-images", "image", message, remedy)
    sizes = {(seen.height, seen.width) for _, seen in examined.seen}
    if len(sizes) > 1:
        heights, widths = zip(*sizes, strict=True)
        yield Finding(
            "info",
            "mixed-sizes",
            f"image sizes vary: {len(sizes)} sizes, heights {min(heights)} to {max(heights)}, "
            f"widths {min(widths)} to {max(widths)}",
            "Nothing to do; all are brought to one size",
            count=len(sizes),
        )


def find_missing_splits(examined: SeenImages) -> Iterator[Finding]:
    """Splits that the source does not name, which were drawn from its images, or are empty."""
    dataset = examined.dataset
    origins = {"validation": dataset.validation_origin, "test": dataset.test_origin}
    why = {"validation": ", since its own is the test"} if dataset.test_origin == FROM_VALIDATION else {}
    drawn = [
        f"{name}: {origin}{why.get(name, '')}"
        for name, origin in origins.items()
        if not origin.startswith(OF_THE_SOURCE) and len(dataset.splits[name])
    ]
    yield from about(
        drawn,
        "info",
        "drawn-splits",
        "the source does not name every split: " + "; ".join(drawn),
        "Nothing to do; the same seed draws the same images. Name splits to choose them yourself",
    )


def find_repeated(
    groups: Iterable[Iterable[tuple[str, str]]], *, remedy: str = "keep one of each", thing: str = "image"
) -> Iterator[Finding]:
    """Equal images or texts, grouped as (split, name), in two splits or repeated for training."""
    what, noun = ("pixels", "picture") if thing == "image" else ("words", thing)
    repeated = [members for group in groups if len(members := list(group)) > 1]
    for later, earlier in (("test", "train"), ("validation", "train"), ("test", "validation")):
        names = [
            f"{name} = {first}"
            for members in repeated
            if (first := next((name for split, name in members if split == earlier), None)) is not None
            for split, name in members
            if split == later
        ]
        message = f"with the same {what} as a {earlier} {thing}"
        inflated = f"This inflates the score; {remedy}"
        yield from counted(names, "warning", f"{later}-in-{earlier}", f"{later} {thing}", message, inflated)
    in_train = [[name for split, name in members if split == "train"] for members in repeated]
    same = [joined(names) for names in in_train if len(names) > 1]
    message = f"more than once among the training {thing}s: {some_of(same, len(same))}"
    remedy = "Remove the copies, unless the repetition is meant"
    yield from counted(same, "info", "repeated-in-train", noun, message, remedy)
