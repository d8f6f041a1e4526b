"""The doctor's page for a detection data set: findings drawn on images, classes, sizes, samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

from vitrail.data.findings import Finding, Severity, Verdict, number_of
from vitrail.report import sections
from vitrail.report.page import section, tiles, write_page
from vitrail.report.sections import plots_in_row
from vitrail.tasks.detection.box_plots import plots_of_boxes
from vitrail.tasks.detection.dataset import BoxDataset
from vitrail.tasks.detection.figures import (
    Place,
    annotated_figure,
    choose_samples,
    colour_class,
    colour_rules,
)
from vitrail.tasks.detection.inspection import image_and_box

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
