"""The picture of a typographic attack: answers by defence, heads by layer, some of the images."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from vitrail.lab.figures import COLOURS, label
from vitrail.lab.typographic_rows import DEFENCES, DefenceRow, ExampleRow, HeadRow, ImpossibleRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3  # of examples


def draw_shares(axes: Axes, rows: Sequence[DefenceRow], impossible: Sequence[ImpossibleRow]) -> None:
    """Show how often each defence's answers are the written word and the right one.

    Args:
        axes: of one panel.
        rows: what was answered.
        impossible: of defences that have an empty place.
    """
    fields = (
        ("flipped", "answered with the word"),
        ("attacked_accuracy", "right, attacked"),
        ("clean_accuracy", "right, clean"),
    )
    used = [defence for defence in DEFENCES if any(row.defence == defence for row in rows)]
    for shift, (colour, (field, meaning)) in enumerate(zip(COLOURS[1:], fields, strict=False)):
        places = [place + 0.26 * (shift - 1) for place in range(len(used))]
        values = [[getattr(row, field) for row in rows if row.defence == defence] for defence in used]
        axes.bar(
            places, [fmean(each) for each in values], width=0.24, color=colour, label=meaning, alpha=0.75
        )
        for place, each in zip(places, values, strict=True):
            axes.scatter([place] * len(each), each, color="black", s=7, zorder=3, clip_on=False)
    names = [*used, *dict.fromkeys(f"{row.defence}:\nnot possible" for row in impossible)]
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(0, 1)
    num_images = min(row.num_images for row in rows)
    title = f"answers by defence; dots are seeds, of {num_images} images each"
    label(axes, x="", y="share of images", title=title)
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3)


def draw_heads(axes: Axes, rows: Sequence[HeadRow]) -> None:
    """Show how much each head attends to words, by layer."""
    layers = list(dict.fromkeys(row.layer for row in rows))
    for is_silenced, colour, meaning in ((False, COLOURS[0], "kept"), (True, COLOURS[1], "silenced")):
        chosen = [row for row in rows if row.is_silenced == is_silenced]
        axes.scatter(
            [layers.index(row.layer) + 1 for row in chosen],
            [row.attention_to_words for row in chosen],
            color=colour,
            label=meaning,
            s=18,
            alpha=0.8,
        )
    label(axes, x="layer", y="attention to words", title="heads of all seeds")
    axes.set_xticks(range(1, len(layers) + 1))
    axes.legend(frameon=False, fontsize=8)


def draw_examples(axes: Axes, rows: Sequence[ExampleRow], images: Sequence[np.ndarray]) -> None:
    """Show attacked images with what is answered, in two rows.

    Args:
        axes: of one panel.
        rows: at most six.
        images: one for each row.
    """
    axes.axis("off")
    axes.set_title("shown + written: answered, and with prompts", fontsize=10)
    for place, (row, image) in enumerate(zip(rows, images, strict=True)):
        x, bottom = (place % COLUMNS) / COLUMNS, 0.52 if place < COLUMNS else 0.0
        text = f"{row.true_class} + {row.word}:\n{row.undefended}, {row.defended}"
        axes.text(
            x + 0.5 / COLUMNS, bottom, text, ha="center", va="bottom", fontsize=7, transform=axes.transAxes
        )
        inset = axes.inset_axes((x + 0.03, bottom + 0.12, 0.27, 0.35))
        inset.imshow(image, interpolation="nearest")
        inset.axis("off")
