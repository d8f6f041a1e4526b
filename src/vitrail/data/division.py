"""Training, validation and test split of a source that does not bring all three."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Int64

from vitrail.data.contract import SplitName
from vitrail.data.divided import Split
from vitrail.data.findings import Finding
from vitrail.data.settings import DataSettings

Places = Int64[np.ndarray, " _"]


S = TypeVar("S", bound=Split)

HoldOut = Callable[[S, float, int, int | None], tuple[Places, Places]]
"""Draws from a split a share, by a seed, at most so many: the places that are kept, and those held out."""


@dataclass(frozen=True)
class Divided(Generic[S]):
    """The three splits, and where two of them are from: fields of every ``DividedDataset``."""

    train: S
    """What is learned from; it may be empty."""
    validation: S
    """What choices are made on."""
    test: S
    """What is read once, at the end."""
    validation_origin: str
    """Where the validation split is from, as a sentence's end."""
    test_origin: str
    """Where the test split is from, likewise."""
    findings: tuple[Finding, ...]
    """Those that came in, and what is to be known of the division."""


def divide(
    splits: Mapping[SplitName, S],
    findings: Sequence[Finding],
    settings: DataSettings,
    *,
    empty: S,
    hold_out: HoldOut[S],
    things: str = "images",
    drawn: str = "",
    max_test: int | None = None,
) -> Divided[S]:
    """Complete the splits of a source: the test first, then the validation out of what remains for training.

    Args:
        splits: what the source brings.
        findings: what is known of it already.
        settings: shares of the splits that are missing, and the seed.
        empty: the training split of a source that has none.
        hold_out: draws the samples of a missing split.
        things: what the samples are, for the origins.
        drawn: how they are drawn, such as ``, stratified``, for the origins.
        max_test: most samples of a test split that is drawn.
    """
    known, found, seed = dict(splits), list(findings), settings.split_seed
    validation_origin = test_origin = "from the source"
    if "test" not in known and "validation" in known:
        known["test"] = known.pop("validation")
        test_origin = "the source's validation split"
        found.append(_takes_validation(things))
    train = known.get("train", empty)
    if "test" not in known:
        fraction = settings.test_fraction
        kept, held = hold_out(train, fraction, seed, max_test)
        share = f"{fraction:g}"
        if max_test is not None and int(fraction * len(train)) > max_test:
            share = f"{len(held)} {things}"
            found.append(_is_bounded(len(held), things, fraction))
        test_origin = f"{share} of the source{drawn}, seed {seed}"
        known["test"], train = train.take(held), train.take(kept)
    if "validation" not in known:
        # one more, so that the same samples are not ranked alike for both splits
        kept, held = hold_out(train, settings.validation_fraction, seed + 1, settings.max_validation)
        validation_origin = f"{len(held)} of the training {things}{drawn}, seed {seed}"
        known["validation"], train = train.take(held), train.take(kept)
    return Divided(train, known["validation"], known["test"], validation_origin, test_origin, tuple(found))


def _takes_validation(things: str) -> Finding:
    return Finding(
        "info",
        "validation-as-test",
        "there is no test split, so the validation split is used for the final test",
        f"Choices are made on a part of the training {things} instead",
    )


def _is_bounded(count: int, things: str, fraction: float) -> Finding:
    return Finding(
        "info",
        "bounded-test",
        f"{count:,} {things} are held out for the final test, not {fraction:g} of all",
        "For a larger test give files of its own, test.*",
    )
