"""Terminal output about models: sizes, settings, cards, benchmarks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from vitrail.cli.show.lines import (
    MAX_WIDTH,
    make_table,
    on_two_lines,
    show_facts,
    show_lines,
    show_table,
    show_wrapped,
)
from vitrail.core.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from vitrail.models.contract import ModelConfig
    from vitrail.models.describe import AttentionCard, Card, PartCard
    from vitrail.studies.inspecting import Learned


def show_models() -> None:
    """Print every model with its parameters and native size, family by family, as they are counted."""
    from vitrail.models import MODELS
    from vitrail.models.describe import count_models

    family = ""
    for name, parameters in count_models():
        config = MODELS[name]
        if config.family != family:
            show_lines(wrap(f"{config.family}: {config.paper}", MAX_WIDTH))
            family = config.family
        show_lines([f"  {name:<28}{parameters:>12,} parameters  {_native_size(config):>9}"])
        sys.stdout.flush()


def show_settings(name: str) -> None:
    """Print every setting of a model with its value and its meaning.

    Raises:
        ConfigError: there is no model of that name.
    """
    from vitrail.models import MODELS

    config = MODELS[name]
    table = make_table("setting", "value", "meaning")
    table.columns[0].no_wrap = True
    values = config.model_dump(mode="json")
    for field, info in type(config).model_fields.items():
        meaning = " ".join((info.description or "").replace("``", "").split())
        table.add_row(f"model.{field}", Text(json.dumps(values[field])), Text(meaning))
    Console().print(table)


def show_card(card: Card) -> None:
    """Print a model card: parts, attention, policies and weights."""
    made_for, given = _card_inputs(card)
    console = Console()
    console.print(Text(f"{card.name}: {card.parameters:,} parameters, made for {made_for}. {card.paper}"))
    console.print(
        Text(
            f"{given}: {card.macs / 1e9:.2f} GMACs, {card.activations / 1e6:.2f} M activations, "
            f"peak memory {_mebibytes(card.peak_bytes)} in float32 (estimated), "
            f"{_mebibytes(card.weight_bytes)} of it weights"
        )
    )
    console.print()
    header = ("part", "parameters", "M MACs", "M activations", "positions", "width")
    show_table(header, map(_part_row, card.parts))
    if card.attention:
        console.print()
        header = ("attention", "heads", "windows", "queries x keys", "elements", "global")
        show_table(header, _attention_rows(card))
        console.print(Text("elements of one head; global: of all tokens of the grid with one another"))
    console.print()
    show_facts(_card_notes(card))


def _part_row(part: PartCard) -> list[str]:
    rows, columns = part.grid or (0, 0)
    return [
        part.name,
        f"{part.parameters:,}",
        f"{part.macs / 1e6:,.1f}" if part.macs else "",
        f"{part.activations / 1e6:,.3f}" if part.activations else "",
        f"{rows}x{columns} = {rows * columns:,}" if part.grid else "",
        str(part.width or ""),
    ]


def _attention_rows(card: Card) -> Iterator[list[str]]:
    """Yield one row per group of layers with the same role and figures."""
    runs: dict[tuple[object, ...], list[AttentionCard]] = {}
    for layer in card.attention:
        names = layer.layer.split(".")
        figures = layer.model_dump(exclude={"layer"}).values()
        runs.setdefault((names[0], names[-1], *figures), []).append(layer)
    for group in runs.values():
        first, *_ = group
        names = [layer.layer.removesuffix(".mixer") for layer in group]
        yield [
            _span(names[0], names[-1]),
            str(first.heads),
            str(first.windows),
            f"{first.queries:,} x {first.keys:,}",
            f"{first.elements:,}",
            f"{first.global_elements:,}",
        ]


def _span(first: str, last: str) -> str:
    """Join two dotted names: ``stages.0.3`` and ``stages.0.5`` give ``stages.0.3-5``."""
    pairs = list(zip_longest(first.split("."), last.split("."), fillvalue=""))
    return ".".join(one if one == other else f"{one}-{other}" for one, other in pairs)


def _native_size(config: ModelConfig) -> str:
    """Return the image size in pixels, or ``text`` for a translation model."""
    size = getattr(config, "image_size", None)
    return "text" if size is None else "x".join(map(str, size))


def _card_inputs(card: Card) -> tuple[str, str]:
    """Return what a model is for, and the input that the card's costs refer to."""
    from vitrail.models.describe import CaptionCard, DetectionCard, ImageCard, ImageTextCard, TranslationCard

    if isinstance(card, ImageCard | DetectionCard | ImageTextCard | CaptionCard):
        native, size = ("x".join(map(str, pixels)) for pixels in (card.native_size, card.image_size))
        text = f" and one text of {card.num_tokens} subwords" if isinstance(card, ImageTextCard) else ""
        if isinstance(card, CaptionCard):
            text = f" with a caption of {card.num_tokens} tokens"
        return native, f"One image of {size}{text}"
    assert isinstance(card, TranslationCard), f"a {type(card).__name__}"
    sizes = " and ".join(f"{size:,}" for size in card.vocabulary_sizes)
    read, written = card.num_tokens
    return f"{sizes} subwords", f"A sentence of {read} subwords with its translation of {written}"


def _card_notes(card: Card) -> Iterator[tuple[str, str]]:
    from vitrail.models.describe import CaptionCard, DetectionCard, ImageCard, ImageTextCard

    yield "positions", card.position_policy
    if isinstance(card, DetectionCard):
        yield "answer", f"{card.num_queries} boxes of {card.num_classes} classes"
        yield "any size", card.size_policy
    if isinstance(card, ImageTextCard):
        yield "answer", f"embeddings of {card.embedding_dim} values for images and texts alike"
        yield "any size", card.size_policy
    if isinstance(card, CaptionCard):
        yield (
            "answer",
            f"captions of {card.vocabulary_size:,} tokens, read from the feature map of {card.encoder}",
        )
        yield "any size", card.size_policy
    if isinstance(card, ImageCard):
        yield "any size", f"at least {card.min_size}x{card.min_size} pixels; {card.size_policy}"
    for source, names in card.weights.items():
        yield source, ", ".join(names)
    if not card.weights:
        yield "weights", "none are published"
    yield "settings", f"vitrail models {card.name} --settings"


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


LABEL_WIDTH = 13


def show_benchmarks() -> None:
    """Print each benchmark: name, the papers' name, classes, and whether it is on this machine."""
    from vitrail.tasks.classification.benchmark_reading import find_folder
    from vitrail.tasks.classification.benchmarks import BENCHMARKS

    rows = [
        (each.name, each.title, f"{each.num_classes:,}", "-" if find_folder(each) is None else "yes")
        for each in BENCHMARKS.values()
    ]
    show_table(("name", "data set", "classes", "here"), rows, texts=(0, 1, 3), width=MAX_WIDTH)
    show_lines([""])
    show_wrapped(
        "vtab-1k stands for all tasks of VTAB with vitrail probe; here: below the folder VITRAIL_DATA."
    )


def show_benchmark(name: str) -> None:
    """Print where a benchmark is looked for and how it is scored, with the commands for it.

    Raises:
        ConfigError: there is none of that name.
    """
    from vitrail.tasks.classification.benchmark_reading import find_folder, folders_of
    from vitrail.tasks.classification.benchmarks import BENCHMARKS, METRIC_TEXTS, benchmark_of

    known = benchmark_of(name)
    if known is None:
        raise ConfigError(
            f"there is no benchmark named {name!r}",
            expected="the name of a benchmark",
            remedy=did_you_mean(name, BENCHMARKS),
        )
    found = find_folder(known)
    places = ", ".join(map(str, folders_of(known)))
    looked = f"no; looked for {places}" if places else "no; VITRAIL_DATA is not set"
    counts = ", ".join(
        f"{count:,} {split}"
        for count, split in zip(known.counts, ("train", "validation", "test"), strict=True)
        if count
    )
    prepared = known.preparation
    entries = {
        "data set": f"{known.title}, {known.paper}",
        "images": f"{counts}; {known.num_classes:,} classes",
        "score": f"{METRIC_TEXTS[known.metric]} ({known.metric_source})",
        "preparation": f"{prepared.resize}, {prepared.crop_fraction:g} of the side, {prepared.interpolation} "
        f"({prepared.source})",
        "here": str(found) if found is not None else looked,
        "hub": known.hub or "-",
        "published at": known.download,
        "layout": known.layout,
    }
    if known.fine_tuning is not None:
        tuned = known.fine_tuning
        rates = ", ".join(f"{rate:g}" for rate in tuned.rates)
        entries["fine-tuned"] = (
            f"{tuned.steps:,} steps of {tuned.batch_size} images of {tuned.side_px} px, SGD with momentum, "
            f"the best rate of {rates} ({tuned.source})"
        )
    lines = []
    for label, text in entries.items():
        parts = wrap(text, MAX_WIDTH - LABEL_WIDTH, break_on_hyphens=False, break_long_words=False)
        lines += [f"{label if place == 0 else '':<{LABEL_WIDTH}}{part}" for place, part in enumerate(parts)]
    options = "evaluate RUN {0}", "probe RUN {0} --protocol knn", "train {0} --weights RUN"
    show_lines([*lines, "", *(f"vitrail {option.format(known.name)}" for option in options)])


def show_learned(found: Learned) -> None:
    """Print one row per attention layer, then the samples and what was left out, and why."""
    from vitrail.studies.learned_page import layer_table, measured_on, reasons

    if found.heads is not None:
        header, rows = layer_table(found.heads)
        shown = header[:5]  # as many as fit; nats are on the page
        texts = [place for place, name in enumerate(shown) if name == "name"]
        show_table(shown, [[*map(on_two_lines, row[:5])] for row in rows], texts=texts)
        show_wrapped(measured_on(found.heads))
    for names, reason in reasons(found):
        show_wrapped(f"not drawn: {names}: {reason}")
