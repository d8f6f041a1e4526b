"""Dataset splits: their names in files and columns, and how missing ones are drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Int64

from vitrail.core.errors import DataError
from vitrail.data.dataset import Split, contents_of
from vitrail.data.findings import Finding, about
from vitrail.data.settings import DataSettings


def stratified_split(
    labels: Int64[np.ndarray, " n"], fraction: float, *, seed: int, max_held: int | None = None
) -> tuple[Int64[np.ndarray, " kept"], Int64[np.ndarray, " held"]]:
    """Hold out a share of every class.

    Each class contributes its share of the total, rounded by largest remainders; a class of two or more
    samples contributes at least one and keeps at least one, so many classes may exceed the bound by as much.

    Args:
        labels: class index of each sample.
        fraction: share to hold out, 0..1.
        max_held: upper bound on the number held out.

    Returns:
        kept: indices of the remaining samples, ascending.
        held: indices of the held-out samples, ascending.
    """
    if max_held is not None:
        fraction = min(fraction, max_held / max(len(labels), 1))
    if fraction <= 0 or len(labels) == 0:
        return np.arange(len(labels)), np.arange(0)
    classes, counts = np.unique(labels, return_counts=True)
    wanted = counts * fraction
    quota = np.floor(wanted + 1e-9).astype(np.int64)
    missing = round(float(wanted.sum())) - int(quota.sum())
    # stable: among equal remainders the lower class index comes first
    quota[np.argsort(quota - wanted, kind="stable")[: max(missing, 0)]] += 1
    quota = np.where(counts >= 2, np.clip(quota, 1, counts - 1), 0)
    rng = np.random.default_rng(seed)
    held = np.zeros(len(labels), dtype=bool)
    for label, number in zip(classes, quota, strict=True):
        members = np.flatnonzero(labels == label)
        held[rng.permutation(members)[:number]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")

SPLIT_NAMES: dict[str, SplitName] = {
    "train": "train",
    "training": "train",
    "restval": "train",  # COCO's validation images that are trained on (Karpathy and Fei-Fei 2015)
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
}
"""Spellings of the split names, in lower case."""


SPLIT_COLUMNS = ("split", "set", "subset", "partition")


def rows_by_split(
    columns: Mapping[str, Sequence[Any]], called: Callable[[int], str]
) -> dict[SplitName, list[int]]:
    """Return the row indices of each split; empty if no column names splits.

    A column counts if its name is one of ``SPLIT_COLUMNS`` and any of its cells names a split: a ``set`` of
    other things divides nothing.

    Raises:
        DataError: the column names splits, and a cell of it names none.

    >>> rows_by_split({"image": ["a.png", "b.png"], "Split": ["Train", "dev"]}, str)
    {'train': [0], 'validation': [1]}
    """
    column = next((name for name in columns if name.strip().lower() in SPLIT_COLUMNS), None)
    if column is None:
        return {}
    cells = columns[column]
    if not any(_split_of(cell) for cell in cells):
        return {}
    parts: dict[SplitName, list[int]] = {}
    for row, cell in enumerate(cells):
        parts.setdefault(split_named(cell, called(row)), []).append(row)
    return parts


def split_named(cell: Any, called: str) -> SplitName:
    """Parse the split that a cell names.

    Raises:
        DataError: it names no split; ``called`` is what the message calls the row.
    """
    split = _split_of(cell)
    if split is None:
        given = "" if cell is None else str(cell).strip()
        raise DataError(
            f"{called} belongs to a split named {given!r}" if given else f"{called} names no split",
            expected=f"one of {', '.join(sorted(SPLIT_NAMES))}",
            remedy="Correct the column of splits",
        )
    return split


def _split_of(cell: Any) -> SplitName | None:
    return SPLIT_NAMES.get(str(cell).strip().lower())


Indices = Int64[np.ndarray, " _"]


S = TypeVar("S", bound=Split)

HoldOut = Callable[[S, float, int, int | None], tuple[Indices, Indices]]
"""(split, fraction, seed, max_held) -> indices that are kept, and those held out."""


def divide(
    splits: Mapping[SplitName, S],
    findings: Sequence[Finding],
    settings: DataSettings,
    *,
    strata: Callable[[S], Int64[np.ndarray, " n"]] = lambda split: np.zeros(len(split), dtype=np.int64),
    hold_out: HoldOut[S] | None = None,
    copies_together: bool = True,
    things: str = "images",
    drawn: str = "",
    max_test: int | None = None,
) -> dict[str, Any]:
    """Complete the splits of a source: test first, then validation out of the remaining training data.

    Returns the fields of a ``DividedDataset``: the splits, their origins, and the findings of both the source
    and the division.

    Args:
        splits: those that the source has.
        findings: of the source so far.
        settings: shares of the missing splits, and the seed.
        strata: labels of a split's samples; a held-out part has its share of each.
        hold_out: how samples are held out, if not by ``stratified_split``.
        copies_together: whether copies are kept on one side; ``hold_out`` may do so itself.
        things: what the samples are, for the origins.
        drawn: how they are drawn, such as ``, stratified``, for the origins.
        max_test: upper bound on the samples of a drawn test split.
    """
    known, found, seed = dict(splits), list(findings), settings.split_seed
    if hold_out is None:

        def hold_out(train: S, fraction: float, seed: int, max_held: int | None) -> tuple[Indices, Indices]:
            return stratified_split(strata(train), fraction, seed=seed, max_held=max_held)

    if copies_together:
        hold_out = _with_copies(hold_out)
    validation_origin = test_origin = "from the source"
    if "test" not in known and "validation" in known:
        known["test"] = known.pop("validation")
        test_origin = "the source's validation split"
        found.append(
            Finding(
                "info",
                "validation-as-test",
                "there is no test split, so the validation split is used for the final test",
                f"Choices are made on a part of the training {things} instead",
            )
        )
    train = known.get("train", next(iter(known.values())).take([]))
    undivided = train if "test" not in known and max_test is None else None
    if "test" not in known:
        fraction = settings.test_fraction
        kept, held = hold_out(train, fraction, seed, max_test)
        share = f"{fraction:g}"
        if max_test is not None and int(fraction * len(train)) > max_test:
            share = f"{len(held)} {things}"
            found.append(
                Finding(
                    "info",
                    "bounded-test",
                    f"{len(held):,} {things} are held out for the final test, not {fraction:g} of all",
                    "For a larger test give files of its own, test.*",
                )
            )
        test_origin = f"{share} of the source{drawn}, seed {seed}"
        known["test"], train = train.take(held), train.take(kept)
    if "validation" not in known:
        # one more, so that the same samples are not ranked alike for both splits
        kept, held = hold_out(train, settings.validation_fraction, seed + 1, settings.max_validation)
        validation_origin = f"{len(held)} of the training {things}{drawn}, seed {seed}"
        known["validation"], train = train.take(held), train.take(kept)
    return {
        "train": train,
        "validation": known["validation"],
        "test": known["test"],
        "validation_origin": validation_origin,
        "test_origin": test_origin,
        "undivided": undivided,
        "findings": tuple(found),
    }


def _with_copies(hold_out: HoldOut[S]) -> HoldOut[S]:
    """Draw among the first of equal samples; the others follow it."""

    def draw(split: S, fraction: float, seed: int, max_held: int | None) -> tuple[Indices, Indices]:
        numbers: dict[Hashable, int] = {}
        contents = contents_of(split.contents)
        group_of = np.array([numbers.setdefault(content, len(numbers)) for content in contents], int)
        firsts = np.unique(group_of, return_index=True)[1]
        _, drawn = hold_out(split.take(firsts), fraction, seed, max_held)
        is_held = np.isin(group_of, drawn)
        return np.flatnonzero(~is_held), np.flatnonzero(is_held)

    return draw


WORD = re.compile(r"[a-z]+")


def split_of(name: str) -> SplitName | None:
    """Return the split in the name of a file or folder: ``instances_train2017`` is train, ``trainval`` too.

    None if it names none, or several.
    """
    words = WORD.findall(name.lower())
    found = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    if "trainval" in words:
        found.add("train")
    return found.pop() if len(found) == 1 else None


LEADING = re.compile(rf"^(?P<split>{'|'.join(sorted(SPLIT_NAMES, key=len, reverse=True))})(?=$|[._\-\d])")


def leading_split(stem: str) -> SplitName | None:
    """Return the split that a file name begins with, or None.

    >>> [leading_split(stem) for stem in ("test_2016_flickr", "dev2010", "train.en-de", "trainer")]
    ['test', 'validation', 'train', None]
    """
    match = LEADING.match(stem.lower())
    return SPLIT_NAMES[match["split"]] if match else None


def assign_splits(stems: Collection[str], where: str) -> tuple[dict[SplitName, str], tuple[Finding, ...]]:
    """Decide which part is which split.

    An exact split name precedes longer ones, and of those the first in alphabetical order counts. One part
    without a split name is for training if no other is.

    Args:
        stems: names of the parts, without languages and suffixes.
        where: what holds them, for messages.

    Returns:
        chosen: the part of each split.
        findings: the parts that are not used.

    Raises:
        DataError: several parts could be for training and no name decides.
    """
    by_split: dict[SplitName, list[str]] = {}
    others = []
    for stem in sorted(stems, key=lambda stem: (stem.lower() not in SPLIT_NAMES, stem)):
        split = leading_split(stem)
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
        message = f"there are {len(unused) + 1} texts for {split}, and {used} alone is used"
        remedy = "Give another one alone to evaluate on it, or leave one name for this split"
        yield from about(unused, "warning", f"several-{split}", message, remedy)
    message = f"texts whose names tell no split are not used: {len(others)}"
    remedy = "Name them train, val or test, or move them away"
    yield from about(others, "warning", "unread-texts", message, remedy)
