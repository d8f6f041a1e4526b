"""The steps of one head of a trained model, for one image or sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError
from vitrail.engines.export.comparison import spread
from vitrail.interpret.record import keeping_qkv
from vitrail.interpret.viewer.maps import Grid, Side, Tokens, checked_index
from vitrail.interpret.viewer.steps import steps_matrices
from vitrail.models.checkpoint import LoadedModel
from vitrail.report.plots import check_picture_path, to_picture
from vitrail.report.tiles import MOST_WRITTEN, Matrix, matrix_figure
from vitrail.tasks.contract import Task
from vitrail.tasks.explaining import ExplainOptions

NUM_PATCHES = 6  # shown of an image


class HeadSteps(NamedTuple):
    """What one head computed."""

    title: str
    """Model's answer, layer and head."""
    matrices: tuple[Matrix, ...]


def explain_steps(
    task: Task,
    loaded: LoadedModel,
    given: str,
    options: ExplainOptions,
    *,
    part: str | None = None,
    tokens: Sequence[int] | None = None,
) -> HeadSteps:
    """Draw X, Q, K, V, scores, mask, softmax and Z of one head for one image or sentence.

    Args:
        given: the file, or the text where the task explains texts.
        options: the output is a picture; layer and head by default those shown first.
        part: of a model with several, such as ``source``, ``target`` and ``cross`` of a translator.
        tokens: indices of the queries shown, among all tokens of the layer.

    Raises:
        ConfigError: the output is no picture; or there is no such part, layer, head or token, or the layer
            averages nothing by queries and keys.
        DataError: the input cannot be read.
    """
    check_picture_path(options.output, others=())
    with TemporaryDirectory() as folder, keeping_qkv():
        subwords = "subwords" in task.explain_options  # which have steps, and words have not
        quick = options._replace(output=Path(folder) / "map.png", layer=None, head=None, subwords=subwords)
        (explanation,) = task.explain(loaded, [given], quick).explained
    maps = explanation.part(part)
    recorded = maps.pick(options.layer)
    steps = recorded.steps
    if steps is None:
        raise ConfigError(
            f"{maps.title_of(options.layer)} does not compare queries with keys",
            expected="a layer of attention, whose steps can be shown",
            remedy="Choose another one with --layer or --part, or leave out --steps",
        )
    number = 1 if options.head is None else options.head
    head = maps.head_index(options.layer, number) or 0
    of_pairs = recorded.weights if steps.scores is None else steps.scores
    queries = _names(maps.queries, of_pairs.shape[-2], recorded.query_grid)
    keys = _names(maps.keys, of_pairs.shape[-1], recorded.grid)
    rows = [checked_index("token", each, len(queries)) for each in tokens or _spread(queries, maps.queries)]
    columns = rows if steps.context is None and len(keys) == len(queries) else _spread(keys, maps.keys)
    matrices = steps_matrices(recorded, head, queries, keys, rows=rows, columns=columns)
    answer = explanation.title if len(explanation.title) <= 60 else f"{explanation.title[:58]}.."
    title = f"{answer}: {maps.title_of(options.layer, number)}"
    figure = matrix_figure(matrices, title=title)
    atomic_write(options.output, to_picture(figure, options.output.suffix))
    return HeadSteps(title, matrices)


def _names(side: Side, count: int, grid: tuple[int, int] | None) -> list[str]:
    """Name the tokens of one side: words, boxes, or patches by row and column after the class token."""
    if not isinstance(side, Grid):
        return [*side.texts, *map(str, range(len(side.texts), count))][:count]
    if grid is None or (prefix := count - grid[0] * grid[1]) < 0:
        return [str(number) for number in range(count)]
    patches = [f"{row},{column}" for row in range(grid[0]) for column in range(grid[1])]
    return [*("class", "distill")[:prefix], *map(str, range(2, prefix)), *patches]


def _spread(names: Sequence[str], side: Side) -> list[int]:
    """Return all indices, or the first words, or evenly spaced patches."""
    if len(names) <= MOST_WRITTEN or isinstance(side, Tokens):
        return [*range(min(len(names), MOST_WRITTEN))]
    return spread(len(names), NUM_PATCHES)
