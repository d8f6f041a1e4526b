"""Claim: the parameters and operations of published tables are those of the models in this library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from vitrail.core.config import Config
from vitrail.lab.contract import Judgement, OnProgress, Progress, Row, decide, rows_of
from vitrail.lab.figures import COLOURS, label, new_panels
from vitrail.lab.published_tables import (
    BACKWARD,
    COMPUTE,
    GPU_FLOPS,
    GRID,
    GRID_ELEMENTS,
    JFT_IMAGES,
    NUM_GPUS,
    PARAMETERS,
    QUOTED,
    SENTENCE_TOKENS,
    STEP_TOKENS,
    TRAINING,
    TRANSFORMER,
    VIT,
    WINDOWED,
)
from vitrail.models.contract import ImageModelConfig, ModelConfig, TranslationModelConfig
from vitrail.models.cost import ForwardCost, count_forward, count_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Part = Literal["parameters", "compute", "training", "attention"]
SIZE_TOLERANCE, COST_TOLERANCE = 0.03, 0.06
MOST = 0.8  # share of the numbers that must agree for a part of the claim


class CountedRow(Row):
    """A published number, and what is counted of our model of that name."""

    table: str
    """Where it stands."""
    model: str
    """Its name there."""
    quantity: str
    """What is counted, and its unit."""
    published: float
    """The number in the table, as rounded there."""
    counted: float
    """Of our model, on the meta device; nothing is trained or timed."""
    deviation: float
    """Counted over published, less one."""
    tolerance: float | None
    """Greatest deviation that agrees; none where the table counts something else, and nothing is judged."""


class QuotedRow(Row):
    """A published number that is not computed here: only quoted."""

    table: str
    """Where it stands."""
    model: str
    """Its name there."""
    quantity: str
    """What it is, and its unit."""
    quoted: float
    """The number in the table."""


SizeRow = CountedRow | QuotedRow


class ModelSizes(Config):
    """Count parameters, operations and attention of published models, and lay them beside the tables."""

    name: ClassVar[str] = "model_sizes"
    statement: ClassVar[str] = (
        "The sizes and the compute in the tables of the Transformer and of ViT follow from their "
        "architectures, and a grid of 56 x 56 cells takes 9.8 million elements of attention a head."
    )
    source: ClassVar[str] = (
        f"{VIT}, tables 1 and 6 (counted), 5 (quoted); {TRANSFORMER}, tables 2 (counted and quoted) and 3"
    )
    published: ClassVar[str] = (
        "ViT-Base, Large, Huge: 86, 307, 632 M parameters; pre-training from 50 to 4262 exaFLOPs. "
        "Transformer base and big: 65 and 213 M parameters, 3.3e18 and 2.3e19 FLOPs. (56 x 56)^2 = 9.8 M."
    )
    criterion: ClassVar[str] = (
        f"Holds if every judged number is met: parameters within {SIZE_TOLERANCE:.0%}, exaFLOPs within "
        f"{COST_TOLERANCE:.0%}, elements of attention exactly. Partly if at least {MOST:.0%} of them are. "
        "Numbers that are only quoted, and FLOPs where the table multiplies hours, GPUs and their speed, are "
        "shown and not judged."
    )

    parts: tuple[Part, ...] = Field(default=("parameters", "compute", "training", "attention"), min_length=1)
    """What is counted."""

    def run(self, progress: OnProgress, *, seed: int) -> list[SizeRow]:
        """Count on the meta device; nothing is random."""
        count = {
            "parameters": _parameter_rows,
            "compute": _compute_rows,
            "training": _training_rows,
            "attention": _attention_rows,
        }
        rows: list[SizeRow] = []
        for done, part in enumerate(self.parts):
            progress(Progress(done, len(self.parts), part))
            rows += count[part]()
        progress(Progress(len(self.parts), len(self.parts), "done"))
        quoted = [
            QuotedRow(table=each.table, model=each.model, quantity=each.quantity, quoted=each.value)
            for each in QUOTED
        ]
        return [*rows, *quoted]

    def judge(self, rows: Sequence[SizeRow]) -> Judgement:
        """Compare each deviation with its tolerance."""
        judged = [row for row in rows_of(rows, CountedRow) if row.tolerance is not None]
        agreeing = [row for row in judged if abs(row.deviation) <= (row.tolerance or 0)]
        worst = max(judged, key=lambda row: abs(row.deviation))
        return Judgement(
            verdict=decide(holds=len(agreeing) == len(judged), partly=len(agreeing) >= MOST * len(judged)),
            measured=f"{len(agreeing)} of {len(judged)} numbers agree; the farthest is {worst.model}, "
            f"{worst.quantity}: {worst.counted:.4g} counted, {worst.published:.4g} published "
            f"({worst.deviation:+.1%}). {len(rows_of(rows, QuotedRow))} more are only quoted",
        )

    def draw(self, rows: Sequence[SizeRow]) -> Figure:
        """Show by how much each judged number differs from the published one."""
        figure, (axes,) = new_panels(1)
        counted = [row for row in rows_of(rows, CountedRow) if row.tolerance is not None][::-1]
        figure.set_size_inches(8, 1.2 + 0.22 * len(counted))
        for place, row in enumerate(counted):
            axes.plot([0, 100 * row.deviation], [place, place], color=COLOURS[0])
            axes.scatter([100 * row.deviation], [place], color=COLOURS[0], s=20)
        names = [f"{row.model}, {row.quantity}: {row.published:,.4g}" for row in counted]
        axes.set_yticks(range(len(counted)), names, fontsize=7)
        axes.axvline(0, color="black", linewidth=0.8)
        label(axes, x="counted over published, %", y="", title="counted beside published numbers")
        return figure


CLAIM = ModelSizes()


def _row(
    table: str, model: str, quantity: str, published: float, counted: float, tolerance: float | None
) -> CountedRow:
    return CountedRow(
        table=table,
        model=model,
        quantity=quantity,
        published=published,
        counted=counted,
        deviation=counted / published - 1,
        tolerance=tolerance,
    )


def _parameter_rows() -> Iterator[CountedRow]:
    for table, model, config, millions in PARAMETERS:
        counted = count_parameters(config.build) / 1e6
        yield _row(table, model, "million parameters", millions, counted, SIZE_TOLERANCE)


def _compute_rows() -> Iterator[CountedRow]:
    """Count two operations for each multiplication with its addition, of forward and backward passes."""
    for model, config, epochs, exaflops in COMPUTE:
        counted = 2 * _count_macs(config) * BACKWARD * JFT_IMAGES * epochs / 1e18
        quantity = f"exaFLOPs of {epochs} epochs"
        yield _row(f"{VIT}, table 6", model, quantity, exaflops, counted, COST_TOLERANCE)


def _training_rows() -> Iterator[CountedRow]:
    """Compute FLOPs by the paper's rule, and count those that the model itself makes."""
    table = f"{TRANSFORMER}, table 2"
    for model, config, steps, hours, flops in TRAINING:
        by_rule = hours * 3600 * NUM_GPUS * GPU_FLOPS
        yield _row(table, model, "FLOPs, hours x GPUs x speed", flops, by_rule, None)
        sentences = steps * STEP_TOKENS / SENTENCE_TOKENS
        counted = 2 * _count_macs(config) * BACKWARD * sentences
        yield _row(table, model, "FLOPs, products of the model", flops, counted, None)


def _attention_rows() -> Iterator[CountedRow]:
    table = "lectures; Liu et al. 2021, equations 1 and 2"
    for model, config in (("global", GRID), ("windows of 7 x 7", WINDOWED)):
        first = _count(config).attention[0]
        yield _row(
            table,
            f"56 x 56 cells, {model}",
            "elements a head if global",
            GRID_ELEMENTS,
            first.num_global,
            0.0,
        )
        tolerance = 0.0 if model == "global" else None
        yield _row(
            table,
            f"56 x 56 cells, {model}",
            "elements a head as computed",
            GRID_ELEMENTS,
            first.num_elements,
            tolerance,
        )


def _count_macs(config: ModelConfig) -> int:
    return sum(part.macs for part in _count(config).parts.values())


def _count(config: ModelConfig) -> ForwardCost:
    """Count the forward pass of one image of the model's size, or of one pair of sentences."""
    with torch.device("meta"):
        model: nn.Module = config.build().eval()
        if isinstance(config, ImageModelConfig):
            return count_forward(model, torch.zeros(1, config.num_channels, *config.image_size), {})
        assert isinstance(config, TranslationModelConfig)
        sentence = torch.zeros(1, SENTENCE_TOKENS, dtype=torch.int64)
        lengths = torch.zeros(1, dtype=torch.int64)
        return count_forward(model, (sentence, lengths, sentence), {})
