"""Checks of a data set before training: errors, pitfalls, and facts worth knowing.

Nothing on disk is changed. Every check is a function of the examined data set that yields findings.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator

from vitrail.data.dataset import ImageDataset
from vitrail.data.findings import Finding, Verdict, number_of, sort_findings
from vitrail.data.inspection import Examined, SeenImages, inspect_split
from vitrail.data.split_checks import find_repeated_pixels
from vitrail.tasks.classification.benchmarks import benchmark_of
from vitrail.tasks.classification.class_checks import (
    find_imbalance,
    find_missing_classes,
    find_similar_names,
    find_small_classes,
)
from vitrail.tasks.classification.opening import open_dataset

SMALL_PX = 8  # a shorter side below this shows next to nothing
LARGE_PIXELS = 25_000_000  # takes about a quarter of a second to decode
MAX_UNREADABLE = 0.5  # with a greater fraction of broken files, the data set is not what it was meant to be


def check(
    dataset: ImageDataset | str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None
) -> Verdict:
    """Examine every image of every split.

    Args:
        dataset: an opened data set, or an argument of ``open_dataset``.
        progress: called with the images done and their total.

    Returns:
        : Findings, errors first, and the images to leave out.

    >>> from vitrail.data import open_dataset
    >>> verdict = check(open_dataset("digits"))
    >>> verdict.usable, verdict.counts["images"]
    (True, {'train': 1366, 'validation': 72, 'test': 359})
    """
    if not isinstance(dataset, ImageDataset):
        dataset = open_dataset(dataset)
    total = sum(len(split) for split in dataset.splits.values())
    done = 0

    def advance(number: int) -> None:
        nonlocal done
        done += number
        if progress is not None:
            progress(done, total)

    inspections = {name: inspect_split(split, advance) for name, split in dataset.splits.items()}
    examined = Examined(dataset, inspections)
    found = [finding for judge in CHECKS for finding in judge(examined)]
    return Verdict(
        source=dataset.source,
        findings=sort_findings([*found, *dataset.findings]),
        counts=examined.counts,
        exclude=frozenset(examined.unreadable) - frozenset(_published_test(examined)),
    )


def find_unreadable(examined: SeenImages) -> Iterator[Finding]:
    """Files that are missing, empty, truncated, too large or not images."""
    broken = examined.unreadable
    if broken:
        total = len(broken) + len(examined.seen)
        reasons = tuple(reason if name in reason else f"{name}: {reason}" for name, reason in broken.items())
        yield Finding(
            "error" if len(broken) > MAX_UNREADABLE * total else "warning",
            "unreadable",
            f"{number_of(len(broken), 'image')} of {total} cannot be read",
            "They are left out; replace or remove them",
            reasons,
        )


def find_duplicates(examined: Examined) -> Iterator[Finding]:
    """Identical pixels in two splits, under two labels, or repeated in training."""
    groups: dict[bytes, list[tuple[str, str, int]]] = defaultdict(list)
    for name, split, label, seen in examined.readable:
        groups[seen.pixel_hash].append((split, name, label))
    yield from find_repeated_pixels([(split, name) for split, name, _ in group] for group in groups.values())
    conflicts = tuple(
        " = ".join(f"{name} ({examined.dataset.class_names[label]})" for _, name, label in group)
        for group in groups.values()
        if len({label for _, _, label in group}) > 1
    )
    if conflicts:
        yield Finding(
            "warning",
            "conflicting-labels",
            f"{number_of(len(conflicts), 'picture')} under more than one label",
            "Keep the right label of each",
            conflicts,
        )


def find_unreadable_test(examined: Examined) -> Iterator[Finding]:
    """Unreadable benchmark test images, which a score would leave out."""
    broken = tuple(name for name in _published_test(examined) if name in examined.unreadable)
    if broken:
        yield Finding(
            "error",
            "unreadable-test",
            f"{number_of(len(broken), 'image')} of the published test cannot be read",
            "Fetch them again: nothing is left out of what others are scored on",
            broken,
        )


def find_wrong_suffixes(examined: SeenImages) -> Iterator[Finding]:
    """Files whose suffix does not match their format."""
    items = tuple(f"{name} is {seen.other_format}" for name, seen in examined.seen if seen.other_format)
    if items:
        yield Finding(
            "warning",
            "wrong-suffix",
            f"{number_of(len(items), 'file')} of another format than the suffix says",
            "They are read by their content; rename them for other programs",
            items,
        )


def find_conversions(examined: SeenImages) -> Iterator[Finding]:
    """Images that need conversion to upright 8-bit RGB."""
    told = {
        "grey": "grey, shown as three equal channels",
        "alpha": "transparent in parts, put on white",
        "sixteen-bit": "of 16 bits, scaled to 8",
        "palette": "in palette colours, converted to RGB",
        "cmyk": "in CMYK, converted to RGB",
        "rotated": "rotated by an Exif tag, turned upright",
        "animated": "of several frames, only the first is used",
    }
    affected: dict[str, list[str]] = defaultdict(list)
    for name, seen in examined.seen:
        for trait in seen.traits:
            affected[trait].append(name)
    for trait, text in told.items():
        if names := affected[trait]:
            are = "is" if len(names) == 1 else "are"
            yield Finding(
                "info", trait, f"{number_of(len(names), 'image')} {are} {text}", "Nothing to do", tuple(names)
            )


def find_odd_sizes(examined: SeenImages) -> Iterator[Finding]:
    """Tiny or huge images, and varying sizes."""
    small = tuple(name for name, seen in examined.seen if min(seen.height, seen.width) < SMALL_PX)
    large = tuple(name for name, seen in examined.seen if seen.height * seen.width > LARGE_PIXELS)
    sizes = {(seen.height, seen.width) for _, seen in examined.seen}
    if small:
        yield Finding(
            "warning",
            "small-images",
            f"{number_of(len(small), 'image')} with a side below {SMALL_PX} pixels",
            "Remove them if they are icons or mistakes",
            small,
        )
    if large:
        yield Finding(
            "info",
            "large-images",
            f"{number_of(len(large), 'image')} above {LARGE_PIXELS // 1_000_000} megapixels, slow to decode",
            "Smaller copies train as well and faster",
            large,
        )
    if len(sizes) > 1:
        heights, widths = zip(*sizes, strict=True)
        yield Finding(
            "info",
            "mixed-sizes",
            f"images have {len(sizes)} sizes, heights {min(heights)} to {max(heights)}, "
            f"widths {min(widths)} to {max(widths)}",
            "Nothing to do; all are brought to one size",
            count=len(sizes),
        )


def _published_test(examined: Examined) -> tuple[str, ...]:
    """Return the names of a benchmark's test images; none for other data."""
    dataset = examined.dataset
    return () if benchmark_of(dataset.source) is None else dataset.test.names


CHECKS: tuple[Callable[[Examined], Iterator[Finding]], ...] = (
    find_unreadable,
    find_unreadable_test,
    find_missing_classes,
    find_similar_names,
    find_small_classes,
    find_imbalance,
    find_duplicates,
    find_wrong_suffixes,
    find_conversions,
    find_odd_sizes,
)
"""In the order of a verdict."""
