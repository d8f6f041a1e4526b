"""Checks of the splits, shared by classification, detection and captioning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

from vitrail.data.dataset import DividedDataset
from vitrail.data.findings import Finding, number_of

FROM_VALIDATION = "the source's validation split"  # where a test comes from that the source does not name
OF_THE_SOURCE = ("from the source", FROM_VALIDATION)  # where a split comes from that was not drawn
LEAK_REMEDY = "remove the copies from one of the two"


@runtime_checkable
class ExaminedDivision(Protocol):
    """A data set after its images were inspected."""

    @property
    def dataset(self) -> DividedDataset[Any]:
        """The data set."""


def find_missing_splits(examined: ExaminedDivision) -> Iterator[Finding]:
    """Splits that the source does not name, which were drawn from its images, or are empty."""
    dataset = examined.dataset
    origins = {"validation": dataset.validation_origin, "test": dataset.test_origin}
    why = {"validation": ", since its own is the test"} if dataset.test_origin == FROM_VALIDATION else {}
    drawn = tuple(
        f"{name}: {origin}{why.get(name, '')}"
        for name, origin in origins.items()
        if not origin.startswith(OF_THE_SOURCE) and len(dataset.splits[name])
    )
    if drawn:
        yield Finding(
            "info",
            "drawn-splits",
            "the source does not name every split: " + "; ".join(drawn),
            "Nothing to do; the same seed draws the same images. Name splits to choose them yourself",
            drawn,
        )


def find_repeated_pixels(
    groups: Iterable[Iterable[tuple[str, str]]], *, remedy: str = LEAK_REMEDY
) -> Iterator[Finding]:
    """Images with equal pixels, grouped as (split, name), in two splits or repeated for training."""
    repeated = [members for group in groups if len(members := list(group)) > 1]
    for later, earlier in (("test", "train"), ("validation", "train"), ("test", "validation")):
        names = tuple(
            f"{name} = {first}"
            for members in repeated
            if (first := next((name for split, name in members if split == earlier), None)) is not None
            for split, name in members
            if split == later
        )
        if names:
            yield Finding(
                "warning",
                f"{later}-in-{earlier}",
                f"{number_of(len(names), f'{later} image')} with the same pixels as a {earlier} image",
                f"The score is too good by that; {remedy}",
                names,
            )
    in_train = [[name for split, name in members if split == "train"] for members in repeated]
    same = tuple(" = ".join(names) for names in in_train if len(names) > 1)
    if same:
        yield Finding(
            "info",
            "repeated-in-train",
            f"{number_of(len(same), 'picture')} more than once among the training images",
            "Remove the copies, unless the repetition is meant",
            same,
        )
