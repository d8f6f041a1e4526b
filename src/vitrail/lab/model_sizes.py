"""Claim: the parameters and operations of published tables are those of the models in this library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

from pydantic import Field

from vitrail.data.published import Published, published_results
from vitrail.lab import harness as lab
from vitrail.models import MODELS
from vitrail.models.bit import BiTConfig
from vitrail.models.contract import ModelConfig
from vitrail.models.cost import count_model, count_parameters
from vitrail.models.vit import ViTConfig

VIT, TRANSFORMER = "Dosovitskiy et al. 2021", "Vaswani et al. 2017"
BIT = tuple(f"Kolesnikov et al. 2020 (BiT), table {number}" for number in (1, 2))


# The paper's section 5.1: about 37,000 shared subwords.
_VOCABULARY = {"source_vocabulary_size": 37_000, "target_vocabulary_size": 37_000}
_BASE, _BIG = (MODELS[name].with_changes(_VOCABULARY) for name in ("transformer_base", "transformer_big"))

# Table, model, its configuration and published parameters in millions.
PARAMETERS: tuple[tuple[str, str, ModelConfig, float], ...] = (
    (f"{VIT}, table 1", "ViT-Base", MODELS["vit_b16"], 86),
    (f"{VIT}, table 1", "ViT-Large", MODELS["vit_l16"], 307),
    (f"{VIT}, table 1", "ViT-Huge", MODELS["vit_h14"], 632),
    (f"{TRANSFORMER}, table 3", "Transformer base", _BASE, 65),
    (f"{TRANSFORMER}, table 3", "Transformer big", _BIG, 213),
)

# Pre-training on JFT-300M: epochs. Dosovitskiy et al. 2021, table 6; images of 224 x 224 pixels (table 3).
# The hybrids are quoted.
COMPUTE: tuple[tuple[str, ModelConfig, int], ...] = (
    ("ViT-B/32", MODELS["vit_b32"], 7),
    ("ViT-B/16", MODELS["vit_b16"], 7),
    ("ViT-L/32", MODELS["vit_l32"], 7),
    ("ViT-L/16", MODELS["vit_l16"], 7),
    ("ViT-H/14", MODELS["vit_h14"], 14),
    ("ResNet50x1", MODELS["bit_r50x1"], 7),
    ("ResNet50x2", BiTConfig(width=128), 7),
    ("ResNet101x1", MODELS["bit_r101x1"], 7),
    ("ResNet152x1", BiTConfig(depths=(3, 8, 36, 3)), 7),
    ("ResNet152x2", MODELS["bit_r152x2"], 7),
    ("ResNet200x3", BiTConfig(depths=(3, 24, 36, 3), width=192), 14),
)
_EXAFLOPS = {row.model: row.value for row in published_results() if row.quantity == "exaFLOPs"}
IMAGES = {"ImageNet": 1.3e6, "ImageNet-21k": 14e6, "JFT-300M": 303e6}  # Dosovitskiy et al. 2021, section 4.1
BACKWARD = 3  # the backward pass takes two products for each one of the forward pass

# Steps, hours and FLOPs: Vaswani et al. 2017, table 2 and sections 5.1 and 5.2.
TRAINING: tuple[tuple[str, ModelConfig, int, float, float], ...] = (
    ("Transformer base", _BASE, 100_000, 12, 3.3e18),
    ("Transformer big", _BIG, 300_000, 3.5 * 24, 2.3e19),
)
NUM_GPUS, GPU_FLOPS = 8, 9.5e12  # section 5.2 and footnote 5: single precision, sustained, of a P100
STEP_TOKENS = 25_000  # of the sources, and as many of the targets
SENTENCE_TOKENS = 25  # ours, for the attention in a sentence, which is a small part
PAIR = (SENTENCE_TOKENS, SENTENCE_TOKENS)

# The first grid of a Swin or a PVT: patches of 4 x 4 pixels of an image of 224 x 224.
GRID = ViTConfig(patch_size=4, width=96, depth=1, num_heads=3, class_token=False, pool="mean")
GRID_ELEMENTS = 9_834_496  # (56 * 56) ** 2
WINDOWED = MODELS["swin_t"]

_COUNTED = {
    *(("exaFLOPs", f"{model}, {epochs} epochs") for model, _, epochs in COMPUTE),
    *((f"FLOPs {pair}", model) for model, *_ in TRAINING for pair in ("en-de", "en-fr")),
}
# Only quoted: scores, and costs of models that are not here or underspecified.
QUOTED = tuple(row for row in published_results() if (row.quantity, row.model) not in _COUNTED)

Part = Literal["parameters", "compute", "training", "attention"]
SIZE_TOLERANCE, COST_TOLERANCE = 0.03, 0.06
MOST = 0.8  # share of the numbers that must agree for a part of the claim


class CountedRow(lab.Row):
    """A published number, and our model's count."""

    table: str
    """Section or table."""
    model: str
    """The model's published name."""
    quantity: str
    """The quantity and its unit."""
    published: float
    """The published number, as rounded there."""
    counted: float
    """Our model's number, on the meta device; nothing is trained or timed."""
    deviation: float
    """Counted over published, minus one."""
    tolerance: float | None
    """Largest deviation that agrees; none where the table counts something else, and nothing is judged."""


class QuotedRow(lab.Row):
    """A published number that is quoted, not computed."""

    table: str
    """Section or table."""
    model: str
    """The model's published name."""
    trained_on: str
    """Data of the (pre-)training."""
    quantity: str
    """A benchmark, scored in %, or the quantity and its unit."""
    quoted: float
    """The published number."""


SizeRow = CountedRow | QuotedRow


class ModelSizes(lab.Claim):
    """Count parameters, operations and attention of published models, and compare them with the tables."""

    statement = (
        "The sizes and the compute in the tables of the Transformer and of ViT follow from their "
        "architectures, and a grid of 56 x 56 patches takes 9.8 million elements of attention a head."
    )
    source = (
        f"{VIT}, tables 1 and 6 (counted), 2 and 5 (quoted); "
        f"{TRANSFORMER}, tables 2 (counted and quoted) and 3"
    )
    published = (
        "ViT-Base, Large, Huge: 86, 307, 632 M parameters; pre-training from 50 to 4262 exaFLOPs. "
        "Transformer base and big: 65 and 213 M parameters, 3.3e18 and 2.3e19 FLOPs. (56 x 56)^2 = 9.8 M."
    )
    criterion = (
        f"Holds if every judged number is met: parameters within {SIZE_TOLERANCE:.0%}, exaFLOPs within "
        f"{COST_TOLERANCE:.0%}, elements of attention exactly. Partly if at least {MOST:.0%} of them are. "
        "Numbers that are only quoted, and FLOPs where the table multiplies hours, GPUs and their speed, are "
        "shown and not judged."
    )

    parts: tuple[Part, ...] = Field(default=get_args(Part), min_length=1)
    """What is counted."""

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[SizeRow]:
        """Count on the meta device; nothing is random."""
        rows: list[SizeRow] = []
        for (part,) in lab.tracked(progress, [(part,) for part in self.parts], "{}"):
            rows += COUNTS[part]()
        quoted = (dict(zip(QuotedRow.model_fields, entry, strict=True)) for entry in QUOTED)
        return [*rows, *map(QuotedRow.from_tree, quoted)]

    def judge(self, rows: Sequence[SizeRow]) -> lab.Judgement:
        judged = [row for row in lab.rows_of(rows, CountedRow) if row.tolerance is not None]
        agreeing = [row for row in judged if abs(row.deviation) <= (row.tolerance or 0)]
        share = len(agreeing) / len(judged)
        worst = max(judged, key=lambda row: abs(row.deviation))
        return lab.Judgement(
            verdict=lab.decide(holds=share == 1, partly=share >= MOST),
            measured=f"{len(agreeing)} of {len(judged)} numbers agree; the farthest is {worst.model}, "
            f"{worst.quantity}: {worst.counted:.4g} counted, {worst.published:.4g} published "
            f"({worst.deviation:+.1%}). {len(lab.rows_of(rows, QuotedRow))} more are only quoted",
        )

    def draw(self, rows: Sequence[SizeRow]) -> lab.Figure:
        """Plot the relative deviation of each judged number, and what is quoted."""
        figure, (axes, *quoted) = lab.new_panels(4, columns=2)
        counted = [row for row in lab.rows_of(rows, CountedRow) if row.tolerance is not None][::-1]
        figure.set_size_inches(15, 10)
        for y, row in enumerate(counted):
            axes.plot([0, 100 * row.deviation], [y, y], color=lab.COLOURS[0])
            axes.scatter([100 * row.deviation], [y], color=lab.COLOURS[0], s=20)
        names = [f"{row.model}, {row.quantity}: {row.published:,.4g}" for row in counted]
        axes.set_yticks(range(len(counted)), names, fontsize=7)
        axes.axvline(0, color="black", linewidth=0.8)
        lab.label(axes, x="counted over published, %", y="", title="counted beside published numbers")
        for draw, panel in zip((_draw_data, _draw_compute, _draw_translators), quoted, strict=True):
            draw(panel)
        return figure


CLAIM = ModelSizes()


def _draw_data(axes: lab.Axes) -> None:
    """Plot accuracy over the images of pre-training: Dosovitskiy et al. 2021, figure 3."""
    curves: dict[str, list[Published]] = {}
    for row in published_results():
        if row.quantity == "imagenet" and row.source in (f"{VIT}, table 5", *BIT):
            name = "BiT ResNet152x4" if row.source in BIT else row.model
            curves.setdefault(name, []).append(row)
    for (name, points), colour in zip(curves.items(), lab.COLOURS, strict=True):
        style = "--" if "BiT" in name else "-"
        x, y = [IMAGES[row.trained_on] for row in points], [row.value for row in points]
        axes.plot(x, y, style, color=colour, marker="o", label=name)
    title = "quoted: pre-training data"
    lab.label(axes, x="images of pre-training", y="ImageNet top-1, %", title=title, legend=True, log="x")
    axes.set_xticks(list(IMAGES.values()), [f"{name}\n{count / 1e6:g} M" for name, count in IMAGES.items()])


def _draw_compute(axes: lab.Axes) -> None:
    """Plot accuracy over the compute of pre-training on JFT-300M: Dosovitskiy et al. 2021, figure 5."""
    table = [row for row in published_results() if row.source == f"{VIT}, table 6"]
    accuracy = {row.model: row.value for row in table if row.quantity == "imagenet"}
    kinds = {"ViT": "ViT", "R50x1+ViT": "hybrid", "ResNet": "ResNet (BiT)"}
    for (start, name), colour in zip(kinds.items(), lab.COLOURS, strict=False):
        models = [model for model in _EXAFLOPS if model.startswith(start)]
        x, y = [_EXAFLOPS[model] for model in models], [accuracy[model] for model in models]
        axes.scatter(x, y, color=colour, label=name)
    title = "quoted: pre-training compute"
    lab.label(axes, x="exaFLOPs", y="ImageNet top-1, %", title=title, legend=True, log="x")


def _draw_translators(axes: lab.Axes) -> None:
    """Plot BLEU over training FLOPs: Vaswani et al. 2017, table 2."""
    bleu, flops = (
        {(row.model, row.quantity): row.value for row in published_results() if row.quantity.startswith(what)}
        for what in ("BLEU en-", "FLOPs en-")
    )
    systems = list(dict.fromkeys(model.removesuffix(" ensemble") for model, _ in flops))
    for model in dict.fromkeys(model for model, _ in flops):
        x = [value for (name, _), value in flops.items() if name == model]
        y = [value for (name, _), value in bleu.items() if name == model]
        colour = lab.COLOURS[systems.index(model.removesuffix(" ensemble"))]
        axes.scatter(x, y, color=colour, marker="^" if model.endswith("ensemble") else "o", label=model)
    title = "quoted: newstest2014, en-de (below) and en-fr (above)"
    lab.label(axes, x="training FLOPs", y="BLEU", title=title, legend=True, log="x")


def _row(
    table: str, model: str, quantity: str, published: float, counted: float, tolerance: float | None
) -> CountedRow:
    values = (table, model, quantity, published, counted, counted / published - 1, tolerance)
    return CountedRow.from_tree(dict(zip(CountedRow.model_fields, values, strict=True)))


def _parameter_rows() -> Iterator[CountedRow]:
    for table, model, config, millions in PARAMETERS:
        counted = count_parameters(config.build) / 1e6
        yield _row(table, model, "million parameters", millions, counted, SIZE_TOLERANCE)


def _compute_rows() -> Iterator[CountedRow]:
    """Count two operations per multiply-add, of forward and backward passes."""
    for model, config, epochs in COMPUTE:
        counted = 2 * count_model(config).macs * BACKWARD * IMAGES["JFT-300M"] * epochs / 1e18
        quantity, published = f"exaFLOPs of {epochs} epochs", _EXAFLOPS[f"{model}, {epochs} epochs"]
        yield _row(f"{VIT}, table 6", model, quantity, published, counted, COST_TOLERANCE)


def _training_rows() -> Iterator[CountedRow]:
    """Compute FLOPs by the paper's rule, and count those that the model itself makes."""
    table = f"{TRANSFORMER}, table 2"
    for model, config, steps, hours, flops in TRAINING:
        by_rule = hours * 3600 * NUM_GPUS * GPU_FLOPS
        yield _row(table, model, "FLOPs, hours x GPUs x speed", flops, by_rule, None)
        sentences = steps * STEP_TOKENS / SENTENCE_TOKENS
        counted = 2 * count_model(config, PAIR).macs * BACKWARD * sentences
        yield _row(table, model, "FLOPs, products of the model", flops, counted, None)


def _attention_rows() -> Iterator[CountedRow]:
    table = "Liu et al. 2021, equations 1 and 2"
    for name, config, tolerance in (("global", GRID, 0.0), ("windows of 7 x 7", WINDOWED, None)):
        first, model = count_model(config).attention[0], f"56 x 56 patches, {name}"
        for quantity, counted, each in (
            ("elements a head if global", first.global_elements, 0.0),
            ("elements a head as computed", first.elements, tolerance),
        ):
            yield _row(table, model, quantity, GRID_ELEMENTS, counted, each)


COUNTS: dict[Part, Callable[[], Iterator[CountedRow]]] = {
    "parameters": _parameter_rows,
    "compute": _compute_rows,
    "training": _training_rows,
    "attention": _attention_rows,
}
