"""The loop shared by all predictors: read inputs, set bad ones aside, yield results in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from PIL import Image

from vitrail.core.errors import CheckpointError, ConfigError, DataError
from vitrail.data.images import decode, upright_size
from vitrail.data.inputs import OneImage, open_input
from vitrail.engines.export.package import Package
from vitrail.engines.loading import load_any
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.answer_files import FileResults, text_table
from vitrail.tasks.registry import FALLBACK, TASKS, other_use
from vitrail.train.machine import memory_is_full

if TYPE_CHECKING:
    from vitrail.interpret.viewer.explanation import Explanation

SHOWN_PX = 768  # longer side of an explained photograph
Item = TypeVar("Item")
Prepared = TypeVar("Prepared")
Answer = TypeVar("Answer")


@runtime_checkable
class InRows(Protocol):
    """A result that is one or more rows of a table."""

    def to_rows(self) -> list[dict[str, Any]]:
        """Return plain values by column, the same columns for each result."""


Result = TypeVar("Result", bound=InRows)


class Results(list[Result]):
    """A list of results that is a table, too."""

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each class, box, caption or label, for ``pandas.DataFrame`` or ``csv.DictWriter``.

        An input that could not be used has one row, with its error.
        """
        return [row for each in self for row in each.to_rows()]


def ranked_rows(
    source: dict[str, Any], columns: tuple[str, str], ranked: Sequence[tuple[str, float]], error: str | None
) -> list[dict[str, Any]]:
    """Return a row for each text with its number, best first, or one without any; see ``Results``."""
    rows: list[tuple[Any, ...]] = [(rank, *each) for rank, each in enumerate(ranked, start=1)]
    names = ("rank", *columns)
    return [{**source, **dict(zip(names, row, strict=True)), "error": error} for row in rows or [(None,) * 3]]


def ranked_results(found: Sequence[Any], form: str, **decimals: int) -> FileResults:
    """Return results of ``ranked_rows`` in every output format; plain lines have the best of each.

    Args:
        form: of the score, on the terminal.
        decimals: of the score, in files.
    """
    rows = Results(found).table()
    source, _, text, score, _ = rows[0]
    return FileResults(
        tree=[each.to_json() for each in found],
        columns=(source, text, score),
        rows=[
            (row[source] if row["rank"] == 1 else "", row[text] or "(nothing)", form.format(row[score]))
            for row in rows
            if row["rank"]
        ],
        errors=[(each.source, each.error) for each in found if each.error],
        table=text_table(rows, **decimals),
        lines=[row[text] or "" for row in rows if row["rank"] in (1, None)],
    )


class ResultStream(Iterator[Result]):
    """Results as they come; the rest of them as a table, too."""

    def __init__(self, results: Iterator[Result]) -> None:
        self._results = results

    def __next__(self) -> Result:
        return next(self._results)

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each result; see ``Results.table``."""
        return Results(self).table()


class Answered(NamedTuple):
    """Result of an input that needs no model, such as an empty line."""

    answer: Any


def answer_in_order(
    chunks: Iterable[Sequence[Item]],
    *,
    read: Callable[[Item], Prepared | Answered],
    run: Callable[[Sequence[Item], Sequence[Prepared]], Iterable[Answer]],
    failed: Callable[[Item, str], Answer],
    plan: Callable[[Mapping[int, Prepared]], Iterable[Sequence[int]]] = lambda prepared: [[*prepared]],
) -> Iterator[Answer]:
    """Yield a result for each input, in order and as soon as possible.

    An unreadable input neither raises nor affects the rest of its batch.

    Args:
        chunks: inputs that are read ahead together.
        read: prepares an input, or raises ``DataError``.
        run: predicts one batch of prepared inputs.
        failed: makes the result of an unreadable input from its error.
        plan: divides a chunk's prepared inputs, by position, into batches; one batch by default.
    """
    for chunk in chunks:
        done: dict[int, Answer] = {}
        prepared: dict[int, Prepared] = {}
        for position, item in enumerate(chunk):
            try:
                found = read(item)
            except DataError as error:
                done[position] = failed(item, str(error))
                continue
            if isinstance(found, Answered):
                done[position] = found.answer
            else:
                prepared[position] = found
        following = 0
        for batch in ([], *(plan(prepared) if prepared else ())):
            if batch:
                answers = _run_in_parts(run, [chunk[i] for i in batch], [prepared[i] for i in batch])
                done.update(zip(batch, answers, strict=True))
            while following in done:
                yield done.pop(following)
                following += 1


def _run_in_parts(
    run: Callable[[Sequence[Item], Sequence[Prepared]], Iterable[Answer]],
    items: Sequence[Item],
    prepared: Sequence[Prepared],
) -> list[Answer]:
    """Run a batch, in halves where the GPU's memory is too small for it."""
    try:
        return list(run(items, prepared))
    except torch.OutOfMemoryError:
        if len(items) == 1:
            raise memory_is_full("Choose a smaller model, or device='cpu'") from None
    torch.cuda.empty_cache()
    half = len(items) // 2
    parts = (slice(0, half), slice(half, None))
    return [answer for part in parts for answer in _run_in_parts(run, items[part], prepared[part])]


def several(texts: object) -> Iterable[Any]:
    """Return texts, or one alone in a list; ``ConfigError`` for what is neither."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        return [text_of(texts)]
    return texts


def text_of(line: object) -> str:
    """Return a text; raise the read error that it is, or ``ConfigError`` for another type."""
    if isinstance(line, DataError):
        raise line
    if not isinstance(line, str):
        raise ConfigError(
            f"{line!r} is of the type {type(line).__name__}",
            expected="text, a list of texts, or any other iterable of them",
            remedy="Give str; decode bytes, and leave out what is missing",
        )
    return line


def chunks_of(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Split a list into chunks of ``size``; the last may be shorter."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def read_image(preprocessing: Any, image: OneImage, name: str | None = None) -> torch.Tensor:
    """Resize one image to the model's input size, as in training.

    Raises:
        DataError: the image cannot be read, or contains NaN or infinite values.
    """
    if isinstance(image, Path | bytes):
        pixels: torch.Tensor = preprocessing.read(image, name=name)
        return pixels
    with open_input(image, name) as opened:
        return preprocessing.to_uint8(decode(opened))


def over_photograph(explained: Explanation, preprocessing: Any, image: OneImage) -> Explanation:
    """Return an explanation over the whole image, upright, of which the model saw the crop."""
    with open_input(image) as opened:
        crop = preprocessing.evaluation_box(upright_size(opened))
        whole = decode(opened, at_least=(SHOWN_PX, SHOWN_PX)).copy()
    whole.thumbnail((SHOWN_PX, SHOWN_PX), Image.Resampling.LANCZOS)
    return replace(explained, picture=whole, crop=crop)


def device_or_default(device: str | torch.device | None) -> torch.device:
    """Return a device; by default the GPU, if there is one."""
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.device(automatic if device is None else device)
    except (RuntimeError, TypeError):
        raise ConfigError(
            f"there is no device {device!r}",
            expected="cpu, or cuda where there is a GPU",
            remedy="Leave the device out: a GPU is used where there is one",
        ) from None


def check_positive(what: str, number: object, remedy: str = "Choose a positive number") -> None:
    """Raise ``ConfigError`` unless this is a whole number, 1 or more."""
    if not isinstance(number, Integral) or number < 1:
        raise ConfigError(f"{what} is {number!r}", expected="a whole number, 1 or more", remedy=remedy)


def open_in_torch(
    source: str | Path | LoadedModel, task: str, device: torch.device, *, expected: str = ""
) -> LoadedModel:
    """Open a model that torch alone runs, on a device; arguments and errors as for ``check_task``."""
    loaded = source if isinstance(source, LoadedModel) else load_any(source)
    check_task(loaded, task, expected=expected)
    loaded.model.eval().to(device)
    return loaded


def check_task(opened: LoadedModel | Package, task: str, *, expected: str = "") -> None:
    """Refuse a model of another task.

    Args:
        expected: for the message; by default a run that was trained on the task's data.

    Raises:
        CheckpointError: it is of another task.
    """
    found = opened.preprocessing.get("task", FALLBACK)
    if found != task:
        raise CheckpointError(
            f"{opened.model_settings.get('name', 'the model')} is a model for {found}, not for {task}",
            expected=expected or f"a run that was trained on {TASKS[task].contents}",
            remedy=other_use(opened.preprocessing),
        )
