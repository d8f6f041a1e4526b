"""The doctor's page for a detection data set: findings drawn on images, classes, sizes, samples."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.findings import Finding, Severity, Verdict, number_of
from vitrail.data.images import read_image
from vitrail.interpret.draw import Corners, colour_of, enlarge_picture, hex_colour, text_colour_on
from vitrail.report import sections
from vitrail.report.page import picture_uri, section, tiles, write_page
from vitrail.report.plots import COLOURS, INK, SOFT, inline_svg, new_figure
from vitrail.report.sections import plots_in_row
from vitrail.tasks.detection.dataset import BoxDataset
from vitrail.tasks.detection.faults import clip_to, find_faults, order_corners
from vitrail.tasks.detection.inspection import image_and_box

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("box_page.css").read_text(encoding="utf-8")
SCRIPT = Path(__file__).with_name("box_page.js").read_text(encoding="utf-8")
NUM_SAMPLES = 24  # about 60 kB each
PICTURES_OF_FINDING = 6
MAX_PICTURES = 60  # of all findings
MAX_ITEMS = 60  # named under a finding
MAX_CHIPS = 120  # classes that can be switched on and off
MAX_NOTE = 3  # items named under one picture
LONGEST_PX = 560  # of the embedded picture
MARGIN = 0.3  # of the image's side, shown at most beyond it for a faulty box there
MANY = 12  # boxes, above which names are shown on hover only
MOST = 600  # boxes drawn in one picture
SMALL_PX = 200  # a picture whose longer side is smaller is enlarged, its pixels visible
NUM_COLOURS = 21  # after which they repeat
BINS = 24
MAP_SIDE = 24  # rows and columns of the location map
COCO_SMALL, COCO_LARGE = 32, 96  # sides in pixels of squares that separate small, medium and large in COCO
WIDEST = 8.0  # beyond this aspect, shapes are counted with the last bar
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


class ImageAt(NamedTuple):
    """An image of a data set."""

    split: str
    position: int


def write_box_page(path: Path, dataset: BoxDataset, verdict: Verdict) -> None:
    """Write the verdict with annotated images as a single file that opens offline, replaced atomically.

    Raises:
        CheckpointError: the disk is full or not writable; a former page is unchanged.
    """
    name = Path(dataset.source).name or dataset.source
    plots = plots_of_boxes(dataset)
    parts = [
        _head(name, dataset, verdict),
        _findings(dataset, verdict),
        _classes(dataset),
        section("Sizes, shapes and positions", plots_in_row(plots), PLOT_NOTE) if plots else "",
        _samples(dataset, verdict),
        DIALOG,
    ]
    style = sections.STYLE + STYLE + colour_rules(len(dataset.class_names))
    body = "\n".join(filter(None, parts))
    write_page(path, title=f"{name}: images and boxes", body=body, style=style, script=SCRIPT)


def _head(name: str, dataset: BoxDataset, verdict: Verdict) -> str:
    totals, by_split = {}, {}
    for kind in ("images", "boxes"):
        counts = {
            split: len(content) if kind == "images" else content.num_boxes
            for split, content in dataset.splits.items()
        }
        totals[kind] = sum(counts.values())
        by_split[kind] = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    severities: tuple[Severity, ...] = ("error", "warning")
    counted = [number_of(number, kind) for kind in severities if (number := len(verdict.of(kind)))]
    word = "can be trained on" if verdict.usable else "not usable as it is"
    left_out = f", {number_of(len(verdict.exclude), 'image')} left out" if verdict.exclude else ""
    lead = (
        f'<p class="verdict {"good" if verdict.usable else "bad"}">{word}{left_out}: '
        f"{' and '.join(counted) or 'nothing wrong was found'}</p>"
    )
    mean = totals["boxes"] / max(totals["images"], 1)
    return f"<h1>{escape(name)}</h1>{lead}" + tiles(
        [
            *((f"{totals[kind]:,}", kind, by_split[kind]) for kind in totals),
            (f"{len(dataset.class_names):,}", "classes", dataset.format),
            (f"{mean:.1f}", "boxes an image", "the mean, over all splits"),
        ]
    )


def _findings(dataset: BoxDataset, verdict: Verdict) -> str:
    if not verdict.findings:
        return section("Findings", "<p>None: every check passed.</p>")
    images = {
        name: ImageAt(split, index)
        for split, content in dataset.splits.items()
        for index, name in enumerate(content.names)
    }
    names, room = frozenset(images), MAX_PICTURES
    cards: dict[bool, list[str]] = {True: [], False: []}  # by whether they are for information
    for finding in verdict.findings:
        by_image: dict[str, dict[str, int | None]] = {}  # each item with the number of the box, if it has one
        for item in finding.items if finding.severity != "info" else ():
            if (found := image_and_box(item, names)) is not None:
                by_image.setdefault(found[0], {})[item] = found[1]
        figures = []
        for name, items in list(by_image.items())[: min(PICTURES_OF_FINDING, room)]:
            marked = [number for number in items.values() if number is not None]
            details = [item.removeprefix(name).lstrip(": ") for item in items]
            note = "; ".join(details[:MAX_NOTE])
            note += f" and {len(details) - MAX_NOTE} more" if len(details) > MAX_NOTE else ""
            figures.append(annotated_figure(dataset, images[name], marked=marked, note=note))
        figures = [figure for figure in figures if figure]
        room -= len(figures)
        cards[finding.severity == "info"].append(_card(finding, figures))
    content = "".join(cards[False]) or "<p>Nothing is wrong.</p>"
    if cards[True]:
        content += (
            f"<details><summary>For information: {len(cards[True])}</summary>{''.join(cards[True])}</details>"
        )
    return section("Findings", content, "The gravest first; boxes that are meant are dashed.")


def _card(finding: Finding, figures: Sequence[str]) -> str:
    shots = f"<div class=shots>{''.join(figures)}</div>" if figures else ""
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
        f"{shots}{listed}</article>"
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


def _samples(dataset: BoxDataset, verdict: Verdict) -> str:
    chosen = choose_samples(dataset, verdict.exclude, NUM_SAMPLES)
    figures = "".join(annotated_figure(dataset, image) for image in chosen)
    if not figures:
        return ""
    labels = (dataset.splits[image.split].labels[image.position].tolist() for image in chosen)
    chips = "".join(
        f'<button type="button" class="chip {colour_class(label)}" data-k="{label}" aria-pressed="true">'
        f"{escape(dataset.class_names[label])}</button>"
        for label in sorted({label for row in labels for label in row})[:MAX_CHIPS]
    )
    controls = (
        f'<div class="chips" role="group" aria-label="classes">{chips}'
        '<label><input type="checkbox" id="names" checked> names</label></div>'
    )
    return section(
        "Annotated images", f'{controls}<div class="shots" id="samples">{figures}</div>', SAMPLES_NOTE
    )


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
    dataset: BoxDataset, image: ImageAt, *, marked: Collection[int] = (), note: str = ""
) -> str:
    """Draw one image with its boxes, faintly unless ``marked``; empty if the image cannot be read."""
    split = dataset.splits[image.split]
    name = split.names[image.position]
    try:
        picture = read_image(split.images[image.position], name=name)
    except DataError:
        return ""
    labels, boxes = split.labels[image.position], split.boxes[image.position]
    view = _view(picture.size, boxes[[number for number in marked if number < len(labels)]])
    # Small boxes last, so that they lie over large ones and can be pointed at.
    ordered = order_corners(np.nan_to_num(boxes))
    order = np.argsort(-(ordered[:, 2:] - ordered[:, :2]).prod(axis=1), kind="stable")[:MOST]
    shown = [number for number in order.tolist() if np.isfinite(boxes[number]).all()]
    drawn = "".join(
        _box(boxes[number], int(labels[number]), dataset.class_names, number, view, number in marked)
        for number in [*(n for n in shown if n not in marked), *(n for n in shown if n in marked)]
    )
    width, height = view[2] - view[0], view[3] - view[1]
    is_small = max(picture.size) < SMALL_PX
    flags = {"many": len(labels) - len(marked) > MANY, "marked": marked, "small": is_small}
    kinds = ["frame", *(kind for kind, flag in flags.items() if flag)]
    count = number_of(len(labels), "box")
    enlarged = enlarge_picture(picture, SMALL_PX) if is_small else picture
    embedded = (
        f'<img src="{picture_uri(enlarged, longest=LONGEST_PX)}" alt="" loading="lazy" '
        f'style="{_position(view, (0, 0, picture.width, picture.height))}">'
    )
    caption = f"<b>{escape(name)}</b> {image.split}, {picture.width} x {picture.height} px, {count}"
    return (
        f'<figure class="shot"><button type="button" class="{" ".join(kinds)}" '
        f'style="aspect-ratio:{width:.5g}/{height:.5g}" aria-label="{escape(name)}, {count}: enlarge">'
        f"{embedded}{drawn}</button>"
        f"<figcaption>{caption}{f'<br>{escape(note)}' if note else ''}</figcaption></figure>"
    )


def choose_samples(dataset: BoxDataset, excluded: Collection[str], count: int) -> list[ImageAt]:
    """Choose up to ``count`` images that show every class, the rarest first, then others at random."""
    images = [
        ImageAt(split, index)
        for split, content in dataset.splits.items()
        for index, name in enumerate(content.names)
        if name not in excluded
    ]
    order = np.random.default_rng(0).permutation(len(images)).tolist()
    labels = [set(dataset.splits[image.split].labels[image.position].tolist()) for image in images]
    having: dict[int, list[int]] = {}
    for index in order:
        for label in labels[index]:
            having.setdefault(label, []).append(index)
    queues = [[index for index in order if images[index].split == split] for split in dataset.splits]
    in_turn = [index for turn in itertools.zip_longest(*queues) for index in turn if index is not None]
    chosen: dict[int, None] = {}
    shown: set[int] = set()
    for label in sorted(having, key=lambda label: (len(having[label]), label)):
        if label not in shown and len(chosen) < count:
            chosen[having[label][0]] = None
            shown |= labels[having[label][0]]
    others = [index for index in in_turn if index not in chosen]  # of all splits, so that small ones are seen
    return [images[index] for index in sorted([*chosen, *others[: count - len(chosen)]])]


def _box(
    corners: np.ndarray, label: int, names: Sequence[str], number: int, view: Corners, is_marked: bool
) -> str:
    ordered = order_corners(corners[None])[0]
    left, right = np.clip(ordered[[0, 2]], view[0], view[2]).tolist()
    top, bottom = np.clip(ordered[[1, 3]], view[1], view[3]).tolist()
    width, height = view[2] - view[0], view[3] - view[1]
    is_low, is_end = (top - view[1]) / height < 0.07, (left - view[0]) / width > 0.7
    flags = {"fault": is_marked, "low": is_low, "end": is_end}
    kinds = [colour_class(label), *(kind for kind, flag in flags.items() if flag)]
    name = escape(names[label])
    title = f"{name}, box {number}: {corners[2] - corners[0]:.6g} x {corners[3] - corners[1]:.6g} px"
    style = _position(view, (left, top, right, bottom))
    return f'<i class="{" ".join(kinds)}" data-k="{label}" style="{style}" title="{title}"><b>{name}</b></i>'


def _position(view: Corners, corners: Corners) -> str:
    left, top, right, bottom = corners
    width, height = (view[2] - view[0]) / 100, (view[3] - view[1]) / 100
    return (
        f"left:{(left - view[0]) / width:.2f}%;top:{(top - view[1]) / height:.2f}%;"
        f"width:{(right - left) / width:.2f}%;height:{(bottom - top) / height:.2f}%"
    )


def _view(size: tuple[int, int], boxes_xyxy: np.ndarray) -> Corners:
    """Return the image, and what of these boxes lies beyond it, up to a margin."""
    sides = np.array(size, dtype=np.float64)
    ordered = order_corners(boxes_xyxy[np.isfinite(boxes_xyxy).all(axis=1)])
    low, high = ordered[:, :2].min(axis=0, initial=0), ordered[:, 2:].max(axis=0, initial=0)
    pad = 0.02 * sides  # beyond the outermost line
    first = np.where(low < 0, np.maximum(low - pad, -MARGIN * sides), 0)
    last = np.where(high > sides, np.minimum(high + pad, (1 + MARGIN) * sides), sides)
    return float(first[0]), float(first[1]), float(last[0]), float(last[1])


def plots_of_boxes(dataset: BoxDataset) -> list[str]:
    """Return the plots as elements of a page; empty if no split has a usable box."""
    boxes, sizes, counts = {}, {}, {}
    for name, split in dataset.splits.items():
        numbers = [len(labels) for labels in split.labels]
        together = np.concatenate([np.zeros((0, 4), dtype=np.float32), *split.boxes])
        of_images = np.repeat(split.sizes, numbers, axis=0)
        faults = find_faults(together, of_images)
        usable = ~(faults.not_finite | faults.empty | faults.outside) & (of_images > 0).all(axis=1)
        if usable.any():
            boxes[name] = clip_to(order_corners(together[usable]), of_images[usable])
            sizes[name], counts[name] = of_images[usable], np.array(numbers)
    if not boxes:
        return []
    return [_side_plot(boxes), _aspect_plot(boxes), _count_plot(counts), _cover_plot(boxes, sizes)]


def _side_plot(boxes: Mapping[str, np.ndarray]) -> str:
    sides = {name: np.sqrt((part[:, 2:] - part[:, :2]).prod(axis=1)) for name, part in boxes.items()}
    smallest = max(0.5, min(float(part.min()) for part in sides.values()))
    largest = max(float(part.max()) for part in sides.values())
    edges = np.geomspace(smallest * 0.99, max(largest, smallest * 2) * 1.01, BINS + 1)
    figure, axes = new_figure("root of width times height, px", "boxes, %")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for side in (COCO_SMALL, COCO_LARGE):
        if edges[0] < side < edges[-1]:
            axes.axvline(side, color=SOFT, linewidth=1, linestyle=":", zorder=3)
    return _shares_plot(figure, axes, sides, edges, "sizes of the boxes by split")


def _aspect_plot(boxes: Mapping[str, np.ndarray]) -> str:
    shapes = {}
    for name, part in boxes.items():
        width, height = (part[:, 2:] - part[:, :2]).T
        shapes[name] = np.clip(width / height, 1 / WIDEST, WIDEST)
    edges = np.geomspace(1 / WIDEST * 0.999, WIDEST * 1.001, BINS + 1)
    figure, axes = new_figure("width over height", "boxes, %")
    axes.set_xscale("log", base=2)
    axes.set_xticks([0.125, 0.25, 0.5, 1, 2, 4, 8], ["1:8", "1:4", "1:2", "1", "2:1", "4:1", "8:1"])
    axes.axvline(1, color=SOFT, linewidth=1, linestyle=":", zorder=3)
    return _shares_plot(figure, axes, shapes, edges, "shapes of the boxes by split")


def _count_plot(counts: Mapping[str, np.ndarray]) -> str:
    from matplotlib.ticker import MaxNLocator

    most = max(int(part.max()) for part in counts.values())
    width = max(1, -(-(most + 1) // BINS))  # whole numbers in each bin
    figure, axes = new_figure("boxes in an image", "images, %")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    edges = np.arange(0, most + 1 + width, width) - 0.5
    return _shares_plot(figure, axes, counts, edges, "number of boxes in an image by split")


def _cover_plot(boxes: Mapping[str, np.ndarray], sizes: Mapping[str, np.ndarray]) -> str:
    """Draw how often each location of the images is covered by a box, all splits together."""
    shares = np.concatenate([boxes[name] / sizes[name][:, [1, 0, 1, 0]] for name in boxes])
    edges = np.hstack((np.floor(shares[:, :2] * MAP_SIDE), np.ceil(shares[:, 2:] * MAP_SIDE))).astype(int)
    covered = np.zeros((MAP_SIDE, MAP_SIDE))
    for left, top, right, bottom in edges.clip(0, MAP_SIDE):
        covered[top:bottom, left:right] += 1
    figure, axes = new_figure("share of the width", "share of the height")
    axes.grid(visible=False)
    drawn = axes.imshow(covered, extent=(0, 1, 1, 0), cmap="viridis", interpolation="nearest", vmin=0)
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85)
    bar.ax.tick_params(colors=SOFT, labelcolor=INK)
    bar.set_label("boxes over it", color=INK)
    bar.outline.set_visible(False)
    return inline_svg(figure, "where the boxes are")


def _shares_plot(
    figure: Figure, axes: Axes, values: Mapping[str, np.ndarray], edges: np.ndarray, name: str
) -> str:
    """Draw a histogram per split, in percent of the split, so that unequal splits can be compared."""
    for colour, (split, part) in zip(COLOURS, values.items(), strict=False):
        shares = 100 * np.histogram(part, bins=edges)[0] / max(len(part), 1)
        axes.stairs(shares, edges, color=colour, linewidth=1.6, label=f"{split} ({len(part):,})")
        axes.stairs(shares, edges, color=colour, fill=True, alpha=0.12)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, labelcolor=INK)
    return inline_svg(figure, name)
