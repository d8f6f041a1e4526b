"""Which files of parallel text are for training, validation and test, told by their names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from vitrail.core.errors import DataError
from vitrail.data.findings import Finding
from vitrail.data.splits import SPLIT_NAMES, SplitName

SPLIT = re.compile(rf"^(?P<split>{'|'.join(sorted(SPLIT_NAMES, key=len, reverse=True))})(?=$|[._\-\d])")


def split_of(stem: str) -> SplitName | None:
    """Return the split that the name of a file without its endings tells, or None.

    >>> split_of("test_2016_flickr"), split_of("dev2010"), split_of("train.en-de"), split_of("trainer")
    ('test', 'validation', 'train', None)
    """
    match = SPLIT.match(stem.lower())
    return SPLIT_NAMES[match["split"]] if match else None


def assign_splits(stems: Collection[str], where: str) -> tuple[dict[SplitName, str], tuple[Finding, ...]]:
    """Decide which part is which split.

    A name of a split alone goes before a longer one, among those the first in alphabetical order. One part
    whose name tells no split is for training where no other is.

    Args:
        stems: names of the parts, without languages and suffixes.
        where: what holds them, for messages.

    Returns:
        chosen: the part of each split.
        findings: the parts that are not used.

    Raises:
        DataError: several parts could be for training and no name says which.
    """
    by_split: dict[SplitName, list[str]] = {}
    others = []
    for stem in sorted(stems, key=lambda stem: (stem.lower() not in SPLIT_NAMES, stem)):
        split = split_of(stem)
        if split is None:
            others.append(stem)
        else:
            by_split.setdefault(split, []).append(stem)
    if "train" not in by_split and others:
        if len(others) > 1:
            raise DataError(
                f"{where} holds {len(others)} texts and none is named train: {', '.join(others)}",
                expected="names that begin with train, val (valid, dev) and test",
                remedy=f"Rename them, or give one alone, such as {where}/{others[0]}",
            )
        by_split["train"], others = others, []
    chosen = {split: parts[0] for split, parts in by_split.items()}
    return chosen, tuple(_report(by_split, others))


def _report(by_split: dict[SplitName, list[str]], others: list[str]) -> Iterator[Finding]:
    for split, (used, *unused) in by_split.items():
        if unused:
            yield Finding(
                "warning",
                f"several-{split}",
                f"there are {len(unused) + 1} texts for {split}, and {used} alone is used",
                "Give another one alone to evaluate on it, or leave one name for this split",
                tuple(unused),
            )
    if others:
        yield Finding(
            "warning",
            "unread-texts",
            f"texts whose names tell no split are not used: {len(others)}",
            "Name them train, val or test, or move them away",
            tuple(others),
        )
