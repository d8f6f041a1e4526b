"""The doctor's page of any data set: findings with the samples they name, classes, sizes, samples."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitrail.core.errors import DataError
from vitrail.data.dataset import DividedDataset
from vitrail.data.findings import LABELS, Finding, Verdict
from vitrail.data.images import read_image
from vitrail.data.inspection import read_header_sizes
from vitrail.interpret.draw import Corners, colour_of, enlarge_picture, hex_colour, text_colour_on
from vitrail.report import sections
from vitrail.report.page import picture_uri, section, tiles, write_page
from vitrail.report.plots import COLOURS, INK, inline_svg, new_figure
from vitrail.report.sections import plots_in_row

STYLE = Path(__file__).with_name("data_page.css").read_text(encoding="utf-8")
SCRIPT = Path(__file__).with_name("data_page.js").read_text(encoding="utf-8")
NUM_SAMPLES = 24  # about 60 kB each
EXAMPLES_OF_FINDING = 6
MOST_COPIES = 4  # of one picture, side by side
MAX_EXAMPLES = 60  # of all findings
MAX_ITEMS = 60  # named under a finding
MAX_CHIPS = 120  # classes that can be switched on and off
MAX_NOTE = 3  # items named under one sample
LONGEST_PX = 560  # of the embedded picture
SMALL_PX = 200  # a picture whose longer side is smaller is enlarged, its pixels visible
NUM_COLOURS = 21  # after which they repeat
BINS = 24
WIDEST = 8.0  # beyond this aspect, shapes are counted with the last bar
KINDS = ("images", "texts", "pairs", "boxes", "captions")  # what a verdict counts
PLOT_NOTE = "In percent of each split: splits should look alike."
NAMES = '<label><input type="checkbox" id="names" checked> names</label>'  # of boxes
DIALOG = (
    '<dialog id="large" aria-label="enlarged image"><div class="stand"></div><p class="small"></p>'
    '<form method="dialog"><button type="button" data-step="-1">previous</button>'
    '<button type="button" data-step="1">next</button><button>close</button></form></dialog>'
)


class SampleAt(NamedTuple):
    """A sample of a data set."""

    split: str
    position: int


class Drawn(NamedTuple):
    """A sample as the page shows it, in HTML."""

    content: str
    caption: str = ""
    """After the name and the split, such as the size and the class."""
    aspect: str = ""
    """Width and height of a picture, such as 4/3; empty for text."""
    kinds: Sequence[str] = ()
    """Style classes of a picture."""


class DataView(NamedTuple):
    """How the page shows the data of one task."""

    draw: Callable[[Any, int, Collection[int]], Drawn]
    """Draws a sample of a split, by its index, and the numbers of its boxes that are meant."""
    labels: Callable[[Any], Iterable[Collection[int]]] = lambda split: [()] * len(split)
    """Returns the classes in each sample of a split."""
    by_class: bool = False
    """Whether a sample has one class; samples then stand class by class."""
    things: str = "images"
    """What has a class, in the plural."""
    plots: Sequence[str] = ()


def write_data_page(path: Path, dataset: DividedDataset[Any], verdict: Verdict, view: DataView) -> None:
    """Write the verdict with samples as a single file that opens offline, replaced atomically.

    Raises:
        CheckpointError: the disk is full or not writable; a former page is unchanged.
    """
    name = Path(dataset.source).name or dataset.source
    colours = map(colour_of, range(NUM_COLOURS))
    rules = (
        f".k{label}{{--c:{hex_colour(colour)};--t:{hex_colour(text_colour_on(colour))}}}"
        for label, colour in enumerate(colours)
    )
    parts = [
        _head(name, dataset, verdict),
        _findings(dataset, verdict, view),
        _classes(dataset, verdict, view.things),
        section("Sizes", plots_in_row(view.plots), PLOT_NOTE) if view.plots else "",
        _samples(dataset, verdict, view),
        DIALOG,
    ]
    style = "".join((sections.STYLE, STYLE, *rules))
    write_page(path, title=f"{name}: data", body="\n".join(filter(None, parts)), style=style, script=SCRIPT)


def _head(name: str, dataset: DividedDataset[Any], verdict: Verdict) -> str:
    counts = verdict.counts
    kinds = [kind for kind in KINDS if kind in counts]
    thing, totals = kinds[0].removesuffix("s"), {kind: sum(counts[kind].values()) for kind in kinds}
    word = escape(verdict.summary(width=1000)[-1])
    lead = f'<p class="verdict {"good" if verdict.usable else "bad"}">{word}</p>'
    entries = [
        (f"{totals[kind]:,}", kind, ", ".join(f"{split} {count:,}" for split, count in counts[kind].items()))
        for kind in kinds
    ]
    if "classes" in counts:
        entries.append((f"{counts['classes']:,}", "classes", dataset.format))
    for kind in kinds[1:]:
        mean = totals[kind] / max(totals[kinds[0]], 1)
        entries.append((f"{mean:.1f}", f"{kind} an {thing}", "the mean, over all splits"))
    return f"<h1>{escape(name)}</h1>{lead}{tiles(entries)}"


def _findings(dataset: DividedDataset[Any], verdict: Verdict, view: DataView) -> str:
    if not verdict.findings:
        return section("Findings", "<p>None: every check passed.</p>")
    samples = {
        name: SampleAt(split, index)
        for split, content in dataset.splits.items()
        for index, name in enumerate(content.names)
    }
    room = MAX_EXAMPLES
    cards: dict[bool, list[str]] = {True: [], False: []}  # by whether they are for information
    for finding in verdict.findings:
        groups: dict[tuple[str, ...], list[list[tuple[str, str]]]] = {}  # items by the samples that they name
        for item in finding.items:
            named = list(samples_in(item, samples))
            if len(named) > (finding.severity == "info"):  # a note is drawn where it is about copies
                groups.setdefault(tuple(name for name, _ in named), []).append(named)
        shown = []
        for names, items in list(groups.items())[: min(EXAMPLES_OF_FINDING, room)]:
            figures = [
                draw_sample(dataset, view, samples[name], [each[place][1] for each in items])
                for place, name in enumerate(names[:MOST_COPIES])
            ]
            if any(figures):
                alike = f'<div class="alike">{"".join(figures)}</div>'
                shown.append(alike if len(names) > 1 else figures[0])
        room -= len(shown)
        cards[finding.severity == "info"].append(_card(finding, shown))
    content = "".join(cards[False]) or "<p>Nothing is wrong.</p>"
    if cards[True]:
        content += f"<details><summary>Notes: {len(cards[True])}</summary>{''.join(cards[True])}</details>"
    return section("Findings", content, "The gravest first, with the samples that they name.")


def samples_in(item: str, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each sample that an item of a finding names, and what the item says of it.

    >>> list(samples_in("a: b.png: box 3 (cat)", {"a: b.png"}))
    [('a: b.png', 'box 3 (cat)')]
    >>> list(samples_in("1.png (cat) = 2.png (dog)", {"1.png", "2.png"}))
    [('1.png', '(cat)'), ('2.png', '(dog)')]
    >>> list(samples_in("1.png = 2.png and 7 more", {"1.png", "2.png"}))
    [('1.png', ''), ('2.png', '')]
    """
    item = re.sub(r" and \d+ more$", "", item)
    ends = [len(item), *(found.start() for found in re.finditer(r": | = | \(| is ", item))]
    name = next((item[:end] for end in ends if item[:end] in names), None)
    if name is None:
        return
    rest = item[len(name) :]
    for found in re.finditer(" = ", rest):
        if others := list(samples_in(rest[found.end() :], names)):
            yield name, rest[: found.start()].lstrip(": ")
            yield from others
            return
    yield name, rest.removeprefix(" = ").lstrip(": ")


def _share(share: float) -> str:
    return "below 0.1%" if 0 < share < 0.001 else f"{share:.1%}"


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
        f'<article class="{finding.severity}"><h3><span class="badge">{LABELS[finding.severity]}</span> '
        f"{escape(finding.message)}</h3><p>{escape(finding.remedy)}. <code>{escape(finding.check)}</code></p>"
        f"{shots}{listed}</article>"
    )


def _classes(dataset: DividedDataset[Any], verdict: Verdict, things: str) -> str:
    per_class: Mapping[str, Mapping[str, int]] = verdict.counts.get("per_class", {})
    if not per_class:
        return ""
    totals = {name: sum(numbers.values()) for name, numbers in per_class.items()}
    most, total = max(totals.values()) or 1, sum(totals.values()) or 1
    ids = getattr(dataset, "class_ids", range(len(totals)))
    said = [""] * len(totals) if tuple(ids) == (*range(len(totals)),) else [f" (id {each})" for each in ids]
    head = "".join(f'<th class="number">{split}</th>' for split in dataset.splits)
    rows = "".join(
        f'<tr><td><span class="dot {colour_class(label)}"></span>{escape(name)}{said[label]}</td>'
        + "".join(f'<td class="number">{number:,}</td>' for number in per_class[name].values())
        + f'<td class="number">{_share(totals[name] / total)}</td>'
        + f'<td class="wide"><i style="width:{100 * totals[name] / most:.1f}%"></i></td></tr>'
        for label, name in sorted(enumerate(totals), key=lambda entry: -totals[entry[1]])
    )
    content = (
        '<div class="scroll tall"><table class="classes"><thead><tr><th>class</th>'
        f'{head}<th class="number">share</th><th></th></tr></thead><tbody>{rows}</tbody></table></div>'
    )
    return section(
        f"{things.capitalize()} of each class",
        content,
        f"The most frequent class first; usable {things} alone are counted.",
    )


def _samples(dataset: DividedDataset[Any], verdict: Verdict, view: DataView) -> str:
    chosen = choose_samples(dataset, view, verdict.exclude, NUM_SAMPLES)
    figures = "".join(
        draw_sample(dataset, view, sample, label=min(labels) if view.by_class else None)
        for sample, labels in chosen.items()
    )
    if not figures:
        return ""
    shown = sorted(set[int]().union(*chosen.values()))
    names = [*verdict.counts.get("per_class", ())]
    chips = "".join(
        f'<button type="button" class="chip {colour_class(label)}" data-k="{label}" aria-pressed="true">'
        f"{escape(names[label])}</button>"
        for label in shown[:MAX_CHIPS]
    )
    chips += NAMES if "boxes" in verdict.counts else ""
    controls = f'<div class="chips" role="group" aria-label="classes">{chips}</div>'
    note = "Chosen by chance from all splits, so that every class is shown." if shown else "Chosen by chance."
    return section("Samples", f'{controls}<div class="shots" id="samples">{figures}</div>', note)


def choose_samples(
    dataset: DividedDataset[Any], view: DataView, excluded: Collection[str], count: int
) -> dict[SampleAt, Collection[int]]:
    """Choose up to ``count`` samples that show every class, the rarest first, then others at random.

    Returns:
        The classes of each sample, class by class if a sample has one, else in the order of the data.
    """
    labels = {
        SampleAt(split, index): classes
        for split, content in dataset.splits.items()
        for index, (name, classes) in enumerate(zip(content.names, view.labels(content), strict=True))
        if name not in excluded
    }
    samples = [*labels]
    having: dict[int, list[SampleAt]] = defaultdict(list)
    parts: dict[str, list[SampleAt]] = defaultdict(list)
    for index in np.random.default_rng(0).permutation(len(samples)).tolist():
        parts[samples[index].split].append(samples[index])
        for label in labels[samples[index]]:
            having[label].append(samples[index])
    wanted: list[SampleAt] = []
    shown: set[int] = set()
    for label in sorted(having, key=lambda label: (len(having[label]), label)):
        if label not in shown:
            wanted.append(having[label][0])
            shown.update(labels[having[label][0]])
    queues = having if view.by_class else parts  # in turn, so that small ones are seen
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*queues.values()))
    chosen = [*dict.fromkeys((*wanted, *filter(None, in_turn)))][:count]
    chosen.sort(key=lambda each: (min(labels[each]) if view.by_class else 0, samples.index(each)))
    return {sample: labels[sample] for sample in chosen}


def draw_sample(
    dataset: DividedDataset[Any],
    view: DataView,
    sample: SampleAt,
    said: Sequence[str] = (),
    *,
    label: int | None = None,
) -> str:
    """Draw one sample as a figure; empty if it cannot be read.

    Args:
        said: what items of a finding say of it; boxes that they name are meant.
        label: its class, which hides it when it is switched off.
    """
    split = dataset.splits[sample.split]
    name = escape(split.names[sample.position])
    marked = [int(box[1]) for each in said if (box := re.match(r"box (\d+)(?:\s|$)", each))]
    try:
        drawn = view.draw(split, sample.position, marked)
    except DataError:
        return ""
    news = [each for each in said if each.strip("()") not in drawn.caption]  # such as another class
    note = escape("; ".join(news[:MAX_NOTE]))
    note += f" and {len(news) - MAX_NOTE} more" if len(news) > MAX_NOTE else ""
    content = drawn.content
    if drawn.aspect:
        content = (
            f'<button type="button" class="{" ".join(("frame", *drawn.kinds))}" '
            f'style="aspect-ratio:{drawn.aspect}" aria-label="{name}: enlarge">{content}</button>'
        )
    lines = "<br>".join(filter(None, (f"<b>{name}</b> {sample.split}{drawn.caption}", note)))
    key = "" if label is None else f' data-k="{label}"'
    return f'<figure class="shot"{key}>{content}<figcaption>{lines}</figcaption></figure>'


def draw_image(split: Any, index: int, texts: Iterable[str]) -> Drawn:
    """Draw an image of a split with lines of text below it."""
    picture = read_image(split.images[index], name=split.names[index])
    lines = "".join(f"<br>{escape(text)}" for text in texts)
    return draw_picture(picture, (0, 0, *picture.size), caption=lines)


def draw_picture(
    picture: Image.Image, view: Corners, over: str = "", *, caption: str = "", kinds: Sequence[str] = ()
) -> Drawn:
    """Draw a picture in a frame.

    Args:
        view: corners of the frame in pixels of the picture.
        over: HTML over the picture, placed by ``position_in``.
    """
    is_small = max(picture.size) < SMALL_PX
    enlarged = enlarge_picture(picture, SMALL_PX) if is_small else picture
    position = position_in(view, (0, 0, picture.width, picture.height))
    embedded = (
        f'<img src="{picture_uri(enlarged, longest=LONGEST_PX)}" alt="" loading="lazy" style="{position}">'
    )
    size = f", {picture.width} x {picture.height} px"
    aspect = f"{view[2] - view[0]:.5g}/{view[3] - view[1]:.5g}"
    return Drawn(embedded + over, size + caption, aspect, (*kinds, *["small"] * is_small))


def position_in(view: Corners, corners: Corners) -> str:
    """Return the style that places something in a frame."""
    left, top, right, bottom = corners
    width, height = (view[2] - view[0]) / 100, (view[3] - view[1]) / 100
    return (
        f"left:{(left - view[0]) / width:.2f}%;top:{(top - view[1]) / height:.2f}%;"
        f"width:{(right - left) / width:.2f}%;height:{(bottom - top) / height:.2f}%"
    )


def colour_class(label: int) -> str:
    """Return the style class of a class of the data."""
    return f"k{label % NUM_COLOURS}"


def plots_of_images(dataset: DividedDataset[Any]) -> list[str]:
    """Return plots of the images' sizes and shapes by split; empty if all have one size."""
    sizes = {
        name: read_header_sizes(split.images, range(len(split))) for name, split in dataset.splits.items()
    }
    known = {name: part[part.all(axis=1)] for name, part in sizes.items() if part.all(axis=1).any()}
    different = {tuple(size) for part in known.values() for size in part.tolist()}
    return plots_of_sizes(known, "images") if len(different) > 1 else []


def plots_of_sizes(sizes: Mapping[str, np.ndarray], things: str) -> list[str]:
    """Return plots of sizes and shapes by split.

    Args:
        sizes: height and width of each image or box.
    """
    sides = {name: np.maximum(np.sqrt(part.prod(axis=1)), 0.5) for name, part in sizes.items()}
    shapes = {name: np.clip(part[:, 1] / part[:, 0], 1 / WIDEST, WIDEST) for name, part in sizes.items()}
    return [
        plot_shares(sides, "root of width times height, px", things),
        plot_shares(shapes, "width over height", things),
    ]


def plot_counts(
    dataset: DividedDataset[Any], count: Callable[[Any], Sequence[int]], label: str, things: str
) -> str:
    """Plot by split a number that each sample has, such as its words; ``count`` returns those of a split."""
    numbers = {name: np.array(count(split)) for name, split in dataset.splits.items() if len(split)}
    return plot_shares(numbers, label, things)


def plot_shares(values: Mapping[str, np.ndarray], label: str, things: str) -> str:
    """Draw a histogram per split, in percent of the split; whole numbers, or others by octaves."""
    from matplotlib.ticker import MaxNLocator

    together = np.concatenate([np.zeros(0), *values.values()])
    figure, axes = new_figure(label, f"{things}, %")
    if all(part.dtype.kind == "i" for part in values.values()):
        most = int(together.max(initial=0))
        width = -(-(most + 1) // BINS)  # whole numbers in each bin
        edges = np.arange(0, most + 1 + width, width) - 0.5
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    else:
        edges = np.geomspace(together.min() * 0.99, max(together.max(), together.min() * 2) * 1.01, BINS + 1)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for colour, (split, part) in zip(COLOURS, values.items(), strict=False):
        shares = 100 * np.histogram(part, bins=edges)[0] / max(len(part), 1)
        axes.stairs(shares, edges, color=colour, linewidth=1.6, label=f"{split} ({len(part):,})")
        axes.stairs(shares, edges, color=colour, fill=True, alpha=0.12)
    axes.set_ylim(bottom=0)
    # above the plot: bars may lie anywhere in it
    figure.legend(loc="outside upper center", ncols=len(values), frameon=False, labelcolor=INK, fontsize=8)
    return inline_svg(figure, f"{label}, {things} by split")
