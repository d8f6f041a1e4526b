"""Commands about models: models, convert."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from vitrail.cli import show
from vitrail.cli.app import Flag, Settings, app
from vitrail.core.errors import ConfigError, refuse

if TYPE_CHECKING:
    from vitrail.models.contract import ModelConfig
    from vitrail.models.cost import AttentionCard
    from vitrail.models.describe import Card, PartCard


@app.command(help_epilogue="Example: vitrail models swin_t --size 384x512")
def models(
    name: str | None = None,
    /,
    *,
    size: str | None = None,
    set_: Settings = (),
    settings: Flag = False,
    json: Flag = False,
) -> int:
    """List the models, or describe one: parts, costs at a size, and compatible weights.

    Args:
        name: Model to describe.
        size: Input size for costs: pixels such as 384 or 384x512, subwords read and written such as 64x48.
        set_: One setting of the model, such as model.patch_size=1; may be given several times.
        settings: Show the settings of the model that --set model.NAME=VALUE changes.
        json: Print JSON instead of tables.
    """
    named = "Name the model, as in vitrail models swin_t"
    if name is None or settings:
        refuse({"size": size}, "the name of a model, without --settings", f"{named} --size 384")
    if name is None or json:
        refuse({"settings": settings}, "the name of a model, without --json", f"{named} --settings")
    if name is None:
        refuse({"set": set_}, "the name of a model", f"{named} --set model.window_size=4")

    from vitrail.models.describe import describe, list_cards, parse_size

    if name is None:
        show.json(list(list_cards())) if json else show_models()
    elif settings:
        show_settings(name, _read_changes(set_))
    else:
        pixels = None if size is None else parse_size(size)
        card = describe(name, size=pixels, changes=_read_changes(set_))
        known = {field: value for field, value in card.model_dump(mode="json").items() if value is not None}
        show.json(known) if json else show_card(card, set_)
    return 0


@app.command(help_epilogue="Example: vitrail convert timm:vit_small_patch16_224.augreg_in1k models/vit_s16")
def convert(source: str, output: Path, /, *, model: str | None = None) -> int:
    """Convert published weights to a folder that every command takes as RUN.

    Args:
        source: timm:NAME, hf:OWNER/NAME or a folder of that layout, torchvision:NAME, file:PATH.
        output: New folder, with model.safetensors and model.json.
        model: The model of `vitrail models` that a file's weights belong to, where they fit several.
    """
    from vitrail.models.weights.published import convert_to_folder

    show.lines(convert_to_folder(source, output, model=model))
    return 0


def show_models() -> None:
    """Print every model with its parameters and native size, family by family, as they are counted."""
    from vitrail.models import MODELS
    from vitrail.models.describe import list_cards

    family = ""
    for card in list_cards():
        if card["family"] != family:
            family = card["family"]
            show.lines(wrap(f"{family}: {card['paper']}", show.MAX_WIDTH))
        size = _native_size(MODELS[card["name"]])
        show.lines([f"  {card['name']:<28}{card['parameters']:>12,} parameters  {size:>9}"])
        sys.stdout.flush()


def _read_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Read ``model.NAME=VALUE`` texts."""
    from vitrail.core.config import parse_assignments

    changes = parse_assignments(texts)
    for path in changes:
        if not path.startswith("model."):
            raise ConfigError(
                f"--set {path} does not change the model",
                expected="model.NAME=VALUE",
                remedy=f"Write --set model.{path}=VALUE, or see vitrail models NAME --settings",
            )
    return {path.removeprefix("model."): value for path, value in changes.items()}


def show_settings(name: str, changes: Mapping[str, Any]) -> None:
    """Print every setting of a model with its value and its meaning."""
    from vitrail.models import configure

    config = configure(name, **changes)
    values = config.model_dump(mode="json")
    rows = [
        (
            f"model.{field}",
            json_format.dumps(values[field]),
            " ".join((info.description or "").replace("``", "").split()),
        )
        for field, info in type(config).model_fields.items()
    ]
    show.table(("setting", "value", "meaning"), rows, texts=(0, 1, 2))


def show_card(card: Card, changes: Sequence[str] = ()) -> None:
    """Print a model card: parts, attention, policies and weights, with the changed settings in its name."""
    made_for, given = _card_inputs(card)
    console = Console()
    name = " ".join((card.name, *(f"--set {change}" for change in changes)))
    console.print(show.styled(f"{name}: {card.parameters:,} parameters, made for {made_for}. {card.paper}"))
    console.print(
        Text(
            f"{given}: {card.macs / 1e9:.2f} GMACs, {card.activations / 1e6:.2f} M activations, "
            f"peak memory {_mebibytes(card.peak_bytes)} in float32 (estimated), "
            f"{_mebibytes(card.weight_bytes)} of it weights"
        )
    )
    console.print()
    header = ("part", "parameters", "M MACs", "M activations", "positions", "width")
    show.table(header, map(_part_row, card.parts))
    if card.attention:
        console.print()
        header = ("attention", "heads", "windows", "queries x keys", "elements", "global")
        show.table(header, _attention_rows(card))
        console.print(Text("elements of one head; global: of all tokens of the grid with one another"))
    console.print()
    show.facts(_card_notes(card))


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
    size = getattr(config, "image_size", None)
    return "text" if size is None else "x".join(map(str, size))


def _card_inputs(card: Card) -> tuple[str, str]:
    """Return what a model is for, and the input that the card's costs refer to."""
    if card.vocabulary_sizes is not None:
        assert isinstance(card.num_tokens, tuple)
        sizes = " and ".join(f"{size:,}" for size in card.vocabulary_sizes)
        read, written = card.num_tokens
        return f"{sizes} subwords", f"A sentence of {read} subwords with its translation of {written}"
    if card.native_size is None or card.image_size is None:
        return f"{card.vocabulary_size:,} subwords", f"A text of {card.num_tokens} subwords"
    native, size = ("x".join(map(str, pixels)) for pixels in (card.native_size, card.image_size))
    text = f" and one text of {card.num_tokens} subwords" if card.embedding_dim else ""
    if card.encoder:
        text = f" with a caption of {card.num_tokens} tokens"
    return native, f"One image of {size}{text}"


def _card_notes(card: Card) -> Iterator[tuple[str, str]]:
    yield "positions", card.position_policy
    if card.num_queries:
        yield "answer", f"{card.num_queries} boxes of {card.num_classes} classes"
    elif card.embedding_dim:
        yield "answer", f"embeddings of {card.embedding_dim} values for images and texts alike"
    elif card.encoder:
        tokens = f"{card.vocabulary_size:,} tokens"
        yield "answer", f"captions of {tokens}, read from the feature map of {card.encoder}"
    if card.min_size:
        yield "any size", f"at least {card.min_size}x{card.min_size} pixels; {card.size_policy}"
    elif card.size_policy:
        yield "any size", card.size_policy
    for source, names in card.weights.items():
        yield source, ", ".join(names)
    if not card.weights:
        yield "weights", "none are published"
    yield "settings", f"vitrail models {card.name} --settings"


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
