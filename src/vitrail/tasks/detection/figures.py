"""An annotated image as an element of a page: boxes drawn over the picture, sharp at every size."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.images import read_image
from vitrail.interpret.draw import colour_of, enlarge_picture, hex_colour, text_colour_on
from vitrail.report.page import picture_uri
from vitrail.tasks.detection.dataset import BoxDataset
from vitrail.tasks.detection.faults import order_corners

LONGEST_PX = 560  # of the embedded picture
MARGIN = 0.3  # of the image's side, shown at most beyond it for a faulty box there
MANY = 12  # boxes, above which names are shown on hover only
MOST = 600  # boxes drawn in one picture
SMALL_PX = 200  # a picture whose longer side is smaller is enlarged, its pixels visible
NUM_COLOURS = 21  # after which they repeat


@dataclass(frozen=True)
class Place:
    """Position of an image in a data set."""

    split: str
    index: int


class _View(NamedTuple):
    """The visible area in pixels of the image: all of it, and perhaps more."""

    left: float
    top: float
    right: float
    bottom: float


def colour_rules(num_classes: int) -> str:
    """Return the style rules that give each class its colour."""
    return "".join(
        f".k{label}{{--c:{hex_colour(colour_of(label))};--t:{hex_colour(text_colour_on(colour_of(label)))}}}"
        for label in range(min(num_classes, NUM_COLOURS))
    )


def colour_class(label: int) -> str:
    """Return the style class of a class of the data."""
    return f"k{label % NUM_COLOURS}"


def annotated_figure(
    dataset: BoxDataset, place: Place, *, marked: Collection[int] = (), note: str = ""
) -> str:
    """Draw one image with its boxes, faintly unless ``marked``; empty if the image cannot be read."""
    split = dataset.splits[place.split]
    name = split.names[place.index]
    try:
        picture = read_image(split.images[place.index], name=name)
    except DataError:
        return ""
    labels = split.labels[place.index]
    view = _view(
        picture.size, [split.boxes[place.index][number] for number in marked if number < len(labels)]
    )
    # Small boxes last, so that they lie over large ones and can be pointed at.
    boxes = split.boxes[place.index]
    order = np.argsort(-_areas(boxes), kind="stable")[:MOST]
    shown = [number for number in order.tolist() if np.isfinite(boxes[number]).all()]
    drawn = "".join(
        _box(boxes[number], int(labels[number]), dataset.class_names, number, view, number in marked)
        for number in [*(n for n in shown if n not in marked), *(n for n in shown if n in marked)]
    )
    width, height = view.right - view.left, view.bottom - view.top
    is_small = max(picture.size) < SMALL_PX
    kinds = ["frame"]
    kinds += ["many"] if len(labels) - len(marked) > MANY else []
    kinds += ["marked"] if marked else []
    kinds += ["small"] if is_small else []
    count = f"{len(labels)} box{'' if len(labels) == 1 else 'es'}"
    embedded = enlarge_picture(picture, SMALL_PX) if is_small else picture
    image = (
        f'<img src="{picture_uri(embedded, longest=LONGEST_PX)}" alt="" loading="lazy" '
        f'style="{_position(view, (0, 0, picture.width, picture.height))}">'
    )
    caption = f"<b>{escape(name)}</b> {place.split}, {picture.width} x {picture.height} px, {count}"
    return (
        f'<figure class="shot"><button type="button" class="{" ".join(kinds)}" '
        f'style="aspect-ratio:{width:.5g}/{height:.5g}" aria-label="{escape(name)}, {count}: enlarge">'
        f"{image}{drawn}</button><figcaption>{caption}{f'<br>{escape(note)}' if note else ''}</figcaption>"
        "</figure>"
    )


def choose_samples(dataset: BoxDataset, excluded: Collection[str], count: int) -> list[Place]:
    """Choose up to ``count`` images that show every class, the rarest first, then others at random."""
    places = [
        Place(split, index)
        for split, content in dataset.splits.items()
        for index, name in enumerate(content.names)
        if name not in excluded
    ]
    order = np.random.default_rng(0).permutation(len(places)).tolist()
    labels = [set(dataset.splits[place.split].labels[place.index].tolist()) for place in places]
    having: dict[int, list[int]] = {}
    for index in order:
        for label in labels[index]:
            having.setdefault(label, []).append(index)
    chosen: dict[int, None] = {}
    shown: set[int] = set()
    for label in sorted(having, key=lambda label: (len(having[label]), label)):
        if label not in shown and len(chosen) < count:
            chosen[having[label][0]] = None
            shown |= labels[having[label][0]]
    for index in _in_turn(order, [place.split for place in places]):
        if len(chosen) >= count:
            break
        chosen.setdefault(index)
    return [places[index] for index in sorted(chosen)]


def _in_turn(order: Sequence[int], splits: Sequence[str]) -> Iterable[int]:
    """Interleave the indices of all splits, so that small splits are seen."""
    queues = {split: [index for index in order if splits[index] == split] for split in dict.fromkeys(splits)}
    for turn in range(max(map(len, queues.values()), default=0)):
        for queue in queues.values():
            if turn < len(queue):
                yield queue[turn]


def _box(
    corners: np.ndarray, label: int, names: Sequence[str], number: int, view: _View, is_marked: bool
) -> str:
    ordered = order_corners(corners[None])[0]
    left, right = np.clip(ordered[[0, 2]], view.left, view.right).tolist()
    top, bottom = np.clip(ordered[[1, 3]], view.top, view.bottom).tolist()
    width, height = view.right - view.left, view.bottom - view.top
    kinds = [colour_class(label)]
    kinds += ["fault"] if is_marked else []
    kinds += ["low"] if (top - view.top) / height < 0.07 else []
    kinds += ["end"] if (left - view.left) / width > 0.7 else []
    name = escape(names[label])
    told = f"{name}, box {number}: {corners[2] - corners[0]:.6g} x {corners[3] - corners[1]:.6g} px"
    style = _position(view, (left, top, right, bottom))
    return f'<i class="{" ".join(kinds)}" data-k="{label}" style="{style}" title="{told}"><b>{name}</b></i>'


def _position(view: _View, corners: tuple[float, float, float, float]) -> str:
    left, top, right, bottom = corners
    width, height = (view.right - view.left) / 100, (view.bottom - view.top) / 100
    return (
        f"left:{(left - view.left) / width:.2f}%;top:{(top - view.top) / height:.2f}%;"
        f"width:{(right - left) / width:.2f}%;height:{(bottom - top) / height:.2f}%"
    )


def _view(size: tuple[int, int], boxes: Sequence[np.ndarray]) -> _View:
    """Return the image, and what of these boxes lies beyond it, up to a margin."""
    width, height = size
    left, top, right, bottom = 0.0, 0.0, float(width), float(height)
    finite = [box for box in boxes if np.isfinite(box).all()]
    if finite:
        ordered = order_corners(np.stack(finite))
        pad = 0.02  # of the side, beyond the outermost line
        if (low := float(ordered[:, 0].min())) < 0:
            left = max(low - pad * width, -MARGIN * width)
        if (low := float(ordered[:, 1].min())) < 0:
            top = max(low - pad * height, -MARGIN * height)
        if (high := float(ordered[:, 2].max())) > width:
            right = min(high + pad * width, (1 + MARGIN) * width)
        if (high := float(ordered[:, 3].max())) > height:
            bottom = min(high + pad * height, (1 + MARGIN) * height)
    return _View(left, top, right, bottom)


def _areas(boxes_xyxy: np.ndarray) -> np.ndarray:
    ordered = order_corners(np.nan_to_num(boxes_xyxy))
    return (ordered[:, 2:] - ordered[:, :2]).prod(axis=1)
