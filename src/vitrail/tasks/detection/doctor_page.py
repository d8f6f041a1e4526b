"""The doctor's page for a detection data set: findings drawn on images, classes, sizes, samples."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from vitrail.core.errors import DataError
from vitrail.data.findings import Finding, Severity, Verdict, number_of
from vitrail.data.images import read_image
from vitrail.interpret.draw import colour_of, enlarge_picture, hex_colour, text_colour_on
from vitrail.report import sections
from vitrail.report.page import picture_uri, section, tiles, write_page
from vitrail.report.plots import COLOURS, INK, SOFT, inline_svg, new_figure
from vitrail.report.sections import plots_in_row
from vitrail.tasks.detection.dataset import BoxDataset
from vitrail.tasks.detection.faults import clip_to, find_faults, order_corners
from vitrail.tasks.detection.inspection import image_and_box

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE = Path(__file__).with_name("box_page.css").read_text(encoding="utf-8")
SCRIPT = Path(__file__).with_name("box_page.js").read_text(encoding="utf-8")
NUM_SAMPLES = 24  # about 60 kB each
PICTURES_OF_FINDING = 6
MAX_PICTURES = 60  # of all findings
MAX_ITEMS = 60  # named under a finding
MAX_CHIPS = 120  # classes that can be switched on and off
MAX_NOTE = 3  # items named under one picture
WORDS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "for information"}
PLOT_NOTE = (
    "In percent of each split, so that unequal splits can be compared: they should look alike. Dotted lines "
    "in the first part small, medium and large boxes as the COCO score does (32 and 96 px)."
)
SAMPLES_NOTE = (
    "Chosen to show every class, otherwise by chance. Choose an image to enlarge it, then walk with the "
    "arrow keys; choose a class to hide or show its boxes."
)
DIALOG = (
    '<dialog id="large" aria-label="enlarged image"><div class="stand"></div><p class="small"></p>'
    '<form method="dialog"><button type="button" data-step="-1">previous</button>'
    '<button type="button" data-step="1">next</button><button>close</button></form></dialog>'
)


def write_box_page(path: Path, dataset: BoxDataset, verdict: Verdict) -> None:
    """Write the verdict with annotated images as a single file that opens offline, replaced atomically.

    Raises:
        CheckpointError: the disk is full or not writable; a former page is unchanged.
    """
    name = Path(dataset.source).name or dataset.source
    parts = [
        _head(name, dataset, verdict),
        _findings(dataset, verdict),
        _classes(dataset),
        _plots(dataset),
        _samples(dataset, verdict),
        DIALOG,
    ]
    style = sections.STYLE + STYLE + colour_rules(len(dataset.class_names))
    body = "\n".join(filter(None, parts))
    write_page(path, title=f"{name}: images and boxes", body=body, style=style, script=SCRIPT)


def _head(name: str, dataset: BoxDataset, verdict: Verdict) -> str:
    images = {split: len(content) for split, content in dataset.splits.items()}
    boxes = {split: content.num_boxes for split, content in dataset.splits.items()}
    num_errors, num_warnings = len(verdict.of("error")), len(verdict.of("warning"))
    told = [number_of(num_errors, "error")] if num_errors else []
    told += [number_of(num_warnings, "warning")] if num_warnings else []
    word = "can be trained on" if verdict.usable else "not usable as it is"
    left_out = f", {number_of(len(verdict.exclude), 'image')} left out" if verdict.exclude else ""
    lead = (
        f'<p class="verdict {"good" if verdict.usable else "bad"}">{word}{left_out}: '
        f"{' and '.join(told) or 'nothing wrong was found'}</p>"
    )
    by_split = {
        kind: ", ".join(f"{split} {count:,}" for split, count in counts.items())
        for kind, counts in (("images", images), ("boxes", boxes))
    }
    total, num_images = sum(boxes.values()), max(sum(images.values()), 1)
    return f"<h1>{escape(name)}</h1>{lead}" + tiles(
        [
            (f"{sum(images.values()):,}", "images", by_split["images"]),
            (f"{total:,}", "boxes", by_split["boxes"]),
            (f"{len(dataset.class_names):,}", "classes", dataset.format),
            (f"{total / num_images:.1f}", "boxes an image", "the mean, over all splits"),
        ]
    )


def _findings(dataset: BoxDataset, verdict: Verdict) -> str:
    if not verdict.findings:
        return section("Findings", "<p>None: every check passed.</p>")
    places = {
        name: Place(split, index)
        for split, content in dataset.splits.items()
        for index, name in enumerate(content.names)
    }
    names, room = frozenset(places), MAX_PICTURES
    cards: dict[bool, list[str]] = {True: [], False: []}  # of infos, and of the others
    for finding in verdict.findings:
        told = _items_by_image(finding, names) if finding.severity != "info" else {}
        figures = []
        for name, items in list(told.items())[: min(PICTURES_OF_FINDING, room)]:
            marked = [number for number in items.values() if number is not None]
            details = [item.removeprefix(name).lstrip(": ") for item in items]
            note = "; ".join(details[:MAX_NOTE])
            note += f" and {len(details) - MAX_NOTE} more" if len(details) > MAX_NOTE else ""
            figures.append(annotated_figure(dataset, places[name], marked=marked, note=note))
        figures = [figure for figure in figures if figure]
        room -= len(figures)
        cards[finding.severity == "info"].append(_card(finding, figures))
    content = "".join(cards[False]) or "<p>Nothing is wrong.</p>"
    if cards[True]:
        content += (
            f"<details><summary>For information: {len(cards[True])}</summary>{''.join(cards[True])}</details>"
        )
    return section("Findings", content, "The gravest first; boxes that are meant are dashed.")


def _items_by_image(finding: Finding, names: frozenset[str]) -> dict[str, dict[str, int | None]]:
    """Group the items of a finding by image: each with the number of the box, if it has one."""
    told: dict[str, dict[str, int | None]] = {}
    for item in finding.items:
        found = image_and_box(item, names)
        if found is not None:
            told.setdefault(found[0], {})[item] = found[1]
    return told


def _card(finding: Finding, figures: Iterable[str]) -> str:
    shots = "".join(figures)
    listed = ""
    if finding.items:
        rows = "".join(f"<li>{escape(item)}</li>" for item in finding.items[:MAX_ITEMS])
        more = finding.count - min(MAX_ITEMS, len(finding.items))
        rest = f"<li>and {more:,} more</li>" if more > 0 else ""
        listed = (
            f"<details><summary>named: {finding.count:,}</summary>"
            f'<ul class="items">{rows}{rest}</ul></details>'
        )
    return (
        f'<article class="{finding.severity}"><h3><span class="badge">{WORDS[finding.severity]}</span> '
        f"{escape(finding.message)}</h3><p>{escape(finding.remedy)}. <code>{escape(finding.check)}</code></p>"
        f"{f'<div class=shots>{shots}</div>' if shots else ''}{listed}</article>"
    )


def _classes(dataset: BoxDataset) -> str:
    number = len(dataset.class_names)
    counts = {split: content.count_per_class(number).tolist() for split, content in dataset.splits.items()}
    totals = [sum(counts[split][label] for split in counts) for label in range(number)]
    most, total = max(totals, default=0) or 1, sum(totals) or 1
    head = "".join(f'<th class="number">{split}</th>' for split in counts)
    rows = "".join(
        f'<tr><td><span class="dot {colour_class(label)}"></span>{escape(dataset.class_names[label])}</td>'
        + f'<td class="number soft">{dataset.class_ids[label]}</td>'
        + "".join(f'<td class="number">{counts[split][label]:,}</td>' for split in counts)
        + f'<td class="number">{totals[label] / total:.1%}</td>'
        + f'<td class="wide"><i style="width:{100 * totals[label] / most:.1f}%"></i></td></tr>'
        for label in sorted(range(number), key=lambda label: (-totals[label], label))
    )
    content = (
        '<div class="scroll tall"><table class="classes"><thead><tr><th>class</th><th class="number">id</th>'
        f'{head}<th class="number">share</th><th></th></tr></thead><tbody>{rows}</tbody></table></div>'
    )
    return section(
        "Boxes of each class", content, "The most frequent class first; ids are those of the source."
    )


def _plots(dataset: BoxDataset) -> str:
    plots = plots_of_boxes(dataset)
    return section("Sizes, shapes and places", plots_in_row(plots), PLOT_NOTE) if plots else ""


def _samples(dataset: BoxDataset, verdict: Verdict) -> str:
    places = choose_samples(dataset, verdict.exclude, NUM_SAMPLES)
    figures = "".join(annotated_figure(dataset, place) for place in places)
    if not figures:
        return ""
    shown = sorted({int(label) for place in places for label in _labels(dataset, place)})
    chips = "".join(_chips(dataset, shown[:MAX_CHIPS]))
    controls = (
        f'<div class="chips" role="group" aria-label="classes">{chips}'
        '<label><input type="checkbox" id="names" checked> names</label></div>'
    )
    return section(
        "Annotated images", f'{controls}<div class="shots" id="samples">{figures}</div>', SAMPLES_NOTE
    )


def _labels(dataset: BoxDataset, place: Place) -> Iterator[int]:
    yield from dataset.splits[place.split].labels[place.index].tolist()


def _chips(dataset: BoxDataset, labels: Iterable[int]) -> Iterator[str]:
    for label in labels:
        yield (
            f'<button type="button" class="chip {colour_class(label)}" data-k="{label}" aria-pressed="true">'
            f"{escape(dataset.class_names[label])}</button>"
        )


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


BINS = 24
PLACES = 24  # rows and columns of the location map
COCO_SMALL, COCO_LARGE = 32, 96  # sides in pixels of squares that separate small, medium and large in COCO
WIDEST = 8.0  # beyond this aspect, shapes are counted with the last bar


def plots_of_boxes(dataset: BoxDataset) -> list[str]:
    """Return the plots as elements of a page; empty if no split has a usable box."""
    boxes, sizes, counts = {}, {}, {}
    for name, split in dataset.splits.items():
        together, their_sizes = _usable(
            np.concatenate([np.zeros((0, 4), dtype=np.float32), *split.boxes]),
            np.repeat(split.sizes, [len(labels) for labels in split.labels], axis=0),
        )
        if len(together):
            boxes[name], sizes[name] = together, their_sizes
            counts[name] = np.array([len(labels) for labels in split.labels])
    if not boxes:
        return []
    return [_side_plot(boxes), _aspect_plot(boxes), _count_plot(counts), _place_plot(boxes, sizes)]


def _usable(
    boxes_xyxy: Float[np.ndarray, "n 4"], sizes: Int64[np.ndarray, "n 2"]
) -> tuple[np.ndarray, np.ndarray]:
    faults = find_faults(boxes_xyxy, sizes)
    chosen = ~(faults.not_finite | faults.empty | faults.outside) & (sizes > 0).all(axis=1)
    return clip_to(order_corners(boxes_xyxy[chosen]), sizes[chosen]), sizes[chosen]


def _side_plot(boxes: Mapping[str, np.ndarray]) -> str:
    sides = {name: np.sqrt(_width_height(part).prod(axis=1)) for name, part in boxes.items()}
    smallest = max(0.5, min(float(part.min()) for part in sides.values()))
    largest = max(float(part.max()) for part in sides.values())
    edges = np.geomspace(smallest * 0.99, max(largest, smallest * 2) * 1.01, BINS + 1)
    figure, axes = new_figure("root of width times height, px", "boxes, %")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for side in (COCO_SMALL, COCO_LARGE):
        if edges[0] < side < edges[-1]:
            axes.axvline(side, color=SOFT, linewidth=1, linestyle=":", zorder=3)
    _draw_shares(axes, sides, edges)
    return inline_svg(figure, "sizes of the boxes by split")


def _aspect_plot(boxes: Mapping[str, np.ndarray]) -> str:
    shapes = {}
    for name, part in boxes.items():
        width, height = _width_height(part).T
        shapes[name] = np.clip(width / height, 1 / WIDEST, WIDEST)
    edges = np.geomspace(1 / WIDEST * 0.999, WIDEST * 1.001, BINS + 1)
    figure, axes = new_figure("width over height", "boxes, %")
    axes.set_xscale("log", base=2)
    axes.set_xticks([0.125, 0.25, 0.5, 1, 2, 4, 8], ["1:8", "1:4", "1:2", "1", "2:1", "4:1", "8:1"])
    axes.axvline(1, color=SOFT, linewidth=1, linestyle=":", zorder=3)
    _draw_shares(axes, shapes, edges)
    return inline_svg(figure, "shapes of the boxes by split")


def _count_plot(counts: Mapping[str, np.ndarray]) -> str:
    from matplotlib.ticker import MaxNLocator

    most = max(int(part.max()) for part in counts.values())
    width = max(1, -(-(most + 1) // BINS))  # whole numbers in each bin
    edges = np.arange(0, most + 1 + width, width) - 0.5
    figure, axes = new_figure("boxes in an image", "images, %")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    _draw_shares(axes, counts, edges)
    return inline_svg(figure, "number of boxes in an image by split")


def _place_plot(boxes: Mapping[str, np.ndarray], sizes: Mapping[str, np.ndarray]) -> str:
    """Draw how often each location of the images is covered by a box, all splits together."""
    shares = np.concatenate([boxes[name] / sizes[name][:, [1, 0, 1, 0]] for name in boxes])
    first, last = np.floor(shares[:, :2] * PLACES), np.ceil(shares[:, 2:] * PLACES)
    # Each box adds one to a rectangle: at its corners, then cumulated along both axes.
    steps = np.zeros((PLACES + 1, PLACES + 1))
    left, top = first.astype(int).clip(0, PLACES).T
    right, bottom = last.astype(int).clip(0, PLACES).T
    for rows, columns, sign in ((top, left, 1), (bottom, right, 1), (top, right, -1), (bottom, left, -1)):
        np.add.at(steps, (rows, columns), sign)
    covered = steps.cumsum(axis=0).cumsum(axis=1)[:PLACES, :PLACES]
    figure, axes = new_figure("share of the width", "share of the height")
    axes.grid(visible=False)
    extent = (0, 1, 1, 0)
    drawn = axes.imshow(covered, extent=extent, cmap="viridis", interpolation="nearest", vmin=0)
    axes.set_aspect("equal")
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85)
    bar.ax.tick_params(colors=SOFT, labelcolor=INK)
    bar.set_label("boxes over it", color=INK)
    bar.outline.set_visible(False)
    return inline_svg(figure, "where the boxes are")


def _draw_shares(axes: Axes, values: Mapping[str, np.ndarray], edges: np.ndarray) -> None:
    """Draw a histogram per split, in percent of the split, so that unequal splits can be compared."""
    for colour, (name, part) in zip(COLOURS, values.items(), strict=False):
        numbers, _ = np.histogram(part, bins=edges)
        shares = 100 * numbers / max(len(part), 1)
        axes.stairs(shares, edges, color=colour, linewidth=1.6, label=f"{name} ({len(part):,})")
        axes.stairs(shares, edges, color=colour, fill=True, alpha=0.12)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, labelcolor=INK)


def _width_height(boxes_xyxy: np.ndarray) -> np.ndarray:
    return boxes_xyxy[:, 2:] - boxes_xyxy[:, :2]
