"""What is measured of a CLIP under a typographic attack."""

from __future__ import annotations

from typing import Literal

from vitrail.lab.contract import Row

Defence = Literal["none", "prompts", "masking", "silencing"]
DEFENCES: tuple[Defence, ...] = ("none", "prompts", "masking", "silencing")


class DefenceRow(Row):
    """Answers of one model with one defence, to images as they are and to the same with a word on each."""

    seed: int
    """Of the model where one is trained, of images and of words."""
    defence: Defence
    """None; prompts that name a written word; hiding what may be words; silencing the heads that read."""
    clean_accuracy: float
    """Share of right answers to images without a word."""
    attacked_accuracy: float
    """Share of right answers to images with the name of another class."""
    flipped: float
    """Share of images whose answer becomes the written word, and was not it before."""
    looked_for_words: float | None
    """Share of attacked images on which a word, or what may be one, was found; only masking looks for it."""
    num_images: int
    """How many."""
    num_classes: int
    """Classes that each answer is one of."""


class ImpossibleRow(Row):
    """A defence that the model does not allow, so that nothing is measured of it."""

    seed: int
    """As in the other table."""
    defence: Defence
    """Which."""
    reason: str
    """Why."""


class HeadRow(Row):
    """One head of the image tower."""

    seed: int
    """As in the other table."""
    layer: str
    """Name of its layer."""
    head: int
    """Its number in the layer."""
    attention_to_words: float
    """Share of the class token's attention to cells that goes to those with a word."""
    is_silenced: bool
    """Whether the defence silences it."""


class ExampleRow(Row):
    """One attacked image and its answers."""

    seed: int
    """As in the other tables."""
    place: int
    """Of the image among those of its seed."""
    true_class: str
    """What is shown."""
    word: str
    """What is written."""
    undefended: str
    """The answer without a defence."""
    defended: str
    """The answer with prompts that name a written word."""


TypographicRow = DefenceRow | ImpossibleRow | HeadRow | ExampleRow
