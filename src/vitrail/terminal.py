"""What the commands show on a terminal: tables that fit 80 columns, a progress bar, JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from vitrail.data import Verdict
    from vitrail.deploy.predictor import Prediction
    from vitrail.describe import AttentionCard, Card
    from vitrail.evaluate import Report
    from vitrail.models.contract import ModelConfig
    from vitrail.pipeline import Compared, Prepared, TrainedRun
    from vitrail.pipeline.comparing import ComparisonEvent, OnComparisonEvent
    from vitrail.pipeline.events import OnPipelineEvent, PipelineEvent
    from vitrail.report.comparison import ComparedRun
    from vitrail.train.events import OnEvent

MAX_WIDTH = 80


@contextmanager
def show_training() -> Iterator[OnPipelineEvent]:
    """Give a listener for ``pipeline.train``: the verdict and the choices, then the run and its progress.

    The pipeline tells them to the first of several processes alone.
    """
    from vitrail.pipeline.events import Began, Checked, Finished
    from vitrail.pipeline.preparing import Prepared
    from vitrail.train.progress import show_progress

    console = Console()
    with ExitStack() as stack:
        progress: OnEvent | None = None

        def listen(event: PipelineEvent) -> None:
            nonlocal progress
            if isinstance(event, Checked):
                _show_verdict(console, event.verdict)
            elif isinstance(event, Prepared):
                _show_choices(console, event)
            elif isinstance(event, Began):
                console.print(Text(f"run {event.folder}"), soft_wrap=True)
                progress = stack.enter_context(show_progress(console))  # not while the data is checked
            elif isinstance(event, Finished):
                stack.close()
                console.print("evaluating and writing the report ...")
            else:
                assert progress is not None, "a training that has not begun"
                progress(event)

        yield listen


def show_trained(trained: TrainedRun) -> None:
    """Write the final scores and, as the last line, the one that stands for all and where the report is."""
    if is_first_process():
        show_lines(_score_lines(trained.scores))
        show_lines([f"{trained.headline} {trained.score:.3f}  report {trained.report_path}"])


@contextmanager
def show_comparing() -> Iterator[OnComparisonEvent]:
    """Give a listener for ``pipeline.compare``: what is trained, how far it is, and what it came to."""
    from vitrail.pipeline.comparing import RunBegan, RunEnded

    console = Console()
    with ExitStack() as stack:
        status = stack.enter_context(console.status("")) if console.is_terminal else None
        name = ""

        def listen(event: ComparisonEvent) -> None:
            nonlocal name
            if isinstance(event, RunBegan):
                name = f"{event.number}/{event.total} {event.name}"
                line = name
            elif isinstance(event, RunEnded):
                line = _result_line(event.run)
            else:
                line = f"{name}: {event.line}"
            if status is not None:
                status.update(Text(line))
            if status is None or isinstance(event, RunEnded):
                console.print(Text(line), soft_wrap=True)

        yield listen


def show_comparison(compared: Compared) -> None:
    """Write one row for each mixer or model, and, as the last line, where the page is."""
    from vitrail.report.comparison import comparison_table

    header, rows = comparison_table(compared.comparison)
    table = _make_table(*header)
    table.padding = (0, 1, 0, 0)  # the longest names leave no more room in 80 columns
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
    for run in compared.comparison.runs:
        if run.error:
            sys.stderr.write(f"vitrail: failed: {run.name}: {run.error}\n")
    show_lines([f"report {compared.page}"])


def show_report(report: Report) -> None:
    """Write the scores of an evaluation and their signature."""
    if is_first_process():
        show_lines([*_score_lines(report.scores), report.signature_line])


def show_predictions(predictions: Sequence[Prediction]) -> None:
    """Write one row for each image, its most probable classes first; errors go to the error stream."""
    table = _make_table("image", "class", "probability")
    table.columns[2].justify = "right"
    for prediction in predictions:
        for place, (name, probability) in enumerate(prediction.scores):
            table.add_row(Text(prediction.source if place == 0 else ""), Text(name), f"{probability:.1%}")
    if table.row_count:
        Console().print(table)
    show_errors((prediction.source, prediction.error) for prediction in predictions if prediction.error)


def show_errors(errors: Iterable[tuple[str, str]]) -> None:
    """Write what went wrong with some files to the error stream."""
    for name, error in errors:
        message = error if name in error else f"{name}: {error}"
        sys.stderr.write(f"vitrail: skipped: {message}\n")


def show_line_fault(number: int, severity: str, message: str) -> None:
    """Write to the error stream what is wrong with a line of a text, or doubtful of it."""
    sys.stderr.write(f"vitrail: line {number}: {severity}: {message}\n")


def show_models() -> None:
    """Write every model with its parameters and native size, family by family, as they are counted."""
    from vitrail.describe import count_models
    from vitrail.models import MODELS

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
    table = _make_table("setting", "value", "meaning")
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
    notes = _make_table("", "")
    notes.show_header = False
    for label, text in _card_notes(card):
        notes.add_row(label, Text(text))
    console.print(notes)


def show_json(value: Any, path: Path | None = None) -> None:
    """Write JSON to standard output, or to a file.

    Raises:
        ConfigError: the file cannot be written.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if path is None:
        show_lines([text])
        return
    from vitrail.errors import ConfigError

    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}",
            expected="a file in a folder that exists and is writable",
            remedy="Choose another output",
        ) from None
    show_lines([str(path)])


def show_lines(lines: Iterable[str]) -> None:
    """Write lines as they are, not wrapped."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def is_first_process() -> bool:
    """Say whether this process speaks for all; torchrun numbers them."""
    return os.environ.get("RANK", "0") == "0"


def _show_verdict(console: Console, verdict: Verdict) -> None:
    console.print(Text("\n".join(verdict.summary(width=min(console.width, 80)))))
    console.print("choosing, and measuring a few steps ...")


def _show_choices(console: Console, prepared: Prepared) -> None:
    table = _make_table("setting", "value", "reason")
    for setting, value, reason in prepared.choices:
        table.add_row(Text(setting), Text(value), Text(reason))
    console.print(table)


def _result_line(run: ComparedRun) -> str:
    if run.figures is None:
        return f"{run.name} failed: {run.error}"
    steps, speed = run.figures.steps, run.figures.samples_per_s
    return f"{run.name}: accuracy {run.figures.accuracy:.3f}, {steps} steps, {speed:.0f} samples/s"


def _make_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _make_parts_table(card: Card) -> Table:
    table = _make_table("part", "parameters", "M MACs", "M activations", "cells", "width")
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
    table = _make_table("attention", "heads", "windows", "queries x keys", "elements", "global")
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
    from vitrail.describe import DetectionCard, ImageCard, TranslationCard

    if isinstance(card, ImageCard | DetectionCard):
        native, size = ("x".join(map(str, pixels)) for pixels in (card.native_size, card.image_size))
        return native, f"One image of {size}"
    assert isinstance(card, TranslationCard), f"a {type(card).__name__}"
    sizes = " and ".join(f"{size:,}" for size in card.vocabulary_sizes)
    read, written = card.num_tokens
    return f"{sizes} subwords", f"A sentence of {read} subwords with its translation of {written}"


def _card_notes(card: Card) -> Iterator[tuple[str, str]]:
    from vitrail.describe import DetectionCard, ImageCard

    yield "positions", card.position_policy
    if isinstance(card, DetectionCard):
        yield "answer", f"{card.num_queries} boxes of {card.num_classes} classes"
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


def _score_lines(scores: Mapping[str, float]) -> list[str]:
    width = max(map(len, scores), default=0)
    return [f"{name:<{width}}  {score:.4f}" for name, score in scores.items()]
