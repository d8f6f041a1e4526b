"""The named models: their sizes, settings and cards."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitrail.cli.show.lines import MAX_WIDTH, make_table, show_lines

if TYPE_CHECKING:
    from vitrail.models.contract import ModelConfig
    from vitrail.models.describe import AttentionCard, Card


def show_models() -> None:
    """Write every model with its parameters and native size, family by family, as they are counted."""
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
    """Write every setting of one model with its value and its meaning.

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
    """Write what there is to know about a model: parts, attention, policies and weights."""
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
    console.print(_make_parts_table(card))
    if card.attention:
        console.print()
        console.print(_make_attention_table(card))
        console.print(Text("elements of one head; global: of all tokens of the grid with one another"))
    console.print()
    notes = make_table("", "")
    notes.show_header = False
    for label, text in _card_notes(card):
        notes.add_row(label, Text(text))
    console.print(notes)


def _make_parts_table(card: Card) -> Table:
    table = make_table("part", "parameters", "M MACs", "M activations", "cells", "width")
    for column in table.columns[1:]:
        column.justify = "right"
    for part in card.parts:
        rows, columns = part.grid or (0, 0)
        table.add_row(
            part.name,
            f"{part.parameters:,}",
            f"{part.macs / 1e6:,.1f}" if part.macs else "",
            f"{part.activations / 1e6:,.3f}" if part.activations else "",
            f"{rows}x{columns} = {rows * columns:,}" if part.grid else "",
            str(part.width or ""),
        )
    return table


def _make_attention_table(card: Card) -> Table:
    """Write one row for all layers of the same role with the same figures."""
    table = make_table("attention", "heads", "windows", "queries x keys", "elements", "global")
    for column in table.columns[1:]:
        column.justify = "right"
    runs: dict[tuple[object, ...], list[AttentionCard]] = {}
    for layer in card.attention:
        names = layer.layer.split(".")
        figures = layer.model_dump(exclude={"layer"}).values()
        runs.setdefault((names[0], names[-1], *figures), []).append(layer)
    for first, *others in runs.values():
        names = [layer.layer.removesuffix(".mixer") for layer in (first, *others)]
        table.add_row(
            Text(_span(names[0], names[-1])),
            str(first.heads),
            str(first.windows),
            f"{first.queries:,} x {first.keys:,}",
            f"{first.elements:,}",
            f"{first.global_elements:,}",
        )
    return table


def _span(first: str, last: str) -> str:
    """Write two dotted names as one: ``stages.0.3`` and ``stages.0.5`` as ``stages.0.3-5``."""
    pairs = list(zip_longest(first.split("."), last.split("."), fillvalue=""))
    return ".".join(one if one == other else f"{one}-{other}" for one, other in pairs)


def _native_size(config: ModelConfig) -> str:
    """Write the pixels of an image, or ``text`` for a model that translates."""
    size = getattr(config, "image_size", None)
    return "text" if size is None else "x".join(map(str, size))


def _card_inputs(card: Card) -> tuple[str, str]:
    """Say what a model is made for, and what input the card's costs are for."""
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
        yield "answer", f"captions of {card.vocabulary_size:,} tokens, read from the cells of {card.encoder}"
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
