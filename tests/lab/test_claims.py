"""What every claim must do, each claim measured in moments, and criteria that can fail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

import vitrail.lab
from vitrail.core.config import parse_assignments
from vitrail.core.errors import ConfigError
from vitrail.lab import CLAIMS
from vitrail.lab.batch_norm import NormRow
from vitrail.lab.bottleneck import CopiedRow
from vitrail.lab.convolution_by_attention import (
    LAYERS,
    STRUCTURES,
    SpatialRow,
    StructureRow,
    TransferRow,
    WrittenRow,
)
from vitrail.lab.data_hunger import MODELS, HungerRow
from vitrail.lab.far_parts import SceneRow
from vitrail.lab.gradient_paths import CELLS as RECURRENT_CELLS
from vitrail.lab.gradient_paths import GradientRow as PathRow
from vitrail.lab.harness import Progress, Row, Verdict, decide, fit_exponent, measure
from vitrail.lab.length_cost import LAYERS as LENGTH_LAYERS
from vitrail.lab.length_cost import ForwardRow, LengthRow, MemoryRow, StepRow
from vitrail.lab.naive_connection import ConnectedRow
from vitrail.lab.permutation import Permutation
from vitrail.lab.pre_norm import GradientRow, PreNorm, TrainedRow
from vitrail.lab.receptive_field import ReceptiveField
from vitrail.lab.score_scaling import ScoreScaling
from vitrail.lab.soft_lookup import LookupRow
from vitrail.lab.split_heads import LAYERS as HEADS
from vitrail.lab.split_heads import HeadsRow
from vitrail.lab.token_functions import LAYERS as TOKEN_LAYERS
from vitrail.lab.token_functions import BuiltRow, FunctionRow, LearnedRow
from vitrail.report.plots import to_picture

# Little enough to be measured in moments; what the claims say then is not looked at.
TINY = {
    "association": "alphas=[1,5] num_symbols=7 length=3 longer=5 num_steps=2 batch_size=5 num_tested=11",
    "batch_norm": "max_length=4 num_symbols=3 width=8 depth=1 num_steps=2 batch_size=3 num_batches=2",
    "bottleneck": "hidden_dim=6 embedding_dim=5 max_length=3 lengths=[1,3,4] num_steps=2 num_tested=2",
    "convolution_by_attention": "alphas=[1] side=4 dim=3 num_steps=2 batch_size=5 num_few=3 few_steps=2 "
    "num_tested=7",
    "data_hunger": "data=digits sizes=[3,5] image_size=8 width=16 depth=1 num_steps=11 batch_size=4 "
    "num_tested=7",
    "double_if": "alphas=[1,5] num_symbols=5 length=4 longer=6 most=2 num_steps=2 batch_size=5 num_tested=11",
    "far_parts": "grid=[2,7] distances=[2,6] width=4 num_steps=2 batch_size=3 num_tested=7",
    "hardware_efficiency": 'models=["resnet18"] image_size=32 batch_size=2 rounds=1',
    "gradient_paths": "distances=[1,3,7] num_sequences=3 embedding_dim=5 hidden_dim=6",
    "length_cost": "width=8 lengths=[8,16,32] fit_from=16 batches=[3] batch_length=16 tokens_per_timing=32 "
    "repeats=1",
    "model_sizes": 'parts=["parameters"]',
    "naive_connection": "hidden_dim=6 embedding_dim=5 max_length=4 num_steps=2 batch_size=3 num_tested=5",
    "permutation": "dim=12 num_tokens=7",
    "pre_norm": "width=8 gradient_depths=[1,2] depths=[1] learning_rates=[0.001] num_steps=2 batch_size=3",
    "receptive_field": "size=16 window=4 depths=[1,2] deep=7 dim=4",
    "score_scaling": "dims=[4,64] num_queries=7 num_keys=5",
    "split_heads": "num_symbols=7 num_heads=2 length=3 num_steps=2 num_tested=5",
    "soft_lookup": "scales=[1,8] dim=5 num_queries=7",
    "typographic": "num_tested=9 num_calibration=7 size=32 width=8 num_scenes=20 num_steps=1 batch_size=8",
}


def make_tiny(name: str) -> Any:
    changes = parse_assignments(TINY[name].split())
    if "num_seeds" in type(CLAIMS[name]).model_fields:
        changes["num_seeds"] = 1
    return CLAIMS[name].with_changes(changes)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_complete_measured_judged_and_drawn(name: str) -> None:
    claim, reported = make_tiny(name), list[Progress]()
    assert (Path(vitrail.lab.__file__).parent / f"{name}.py").exists()
    assert min(map(len, (claim.statement, claim.source, claim.published, claim.criterion))) > 20
    assert "olds if" in claim.criterion

    result, figure = measure(claim, seed=3, progress=reported.append)

    assert to_picture(figure).startswith(b"\x89PNG")
    assert result.verdict in get_args(Verdict)
    assert any(character.isdigit() for character in result.measured)
    assert [event.done for event in reported] == sorted(event.done for event in reported)
    assert reported[-1].done == reported[-1].total
    for table in result.tables:
        assert table.caption
        assert all(table.columns.values()), "a column without a meaning"
        assert table.rows


@pytest.mark.parametrize(
    "name",
    [
        "batch_norm",
        "bottleneck",
        "convolution_by_attention",
        "far_parts",
        "gradient_paths",
        "naive_connection",
        "permutation",
        "pre_norm",
        "receptive_field",
        "score_scaling",
        "split_heads",
        "soft_lookup",
    ],
)
def test_the_same_seed_measures_the_same(name: str) -> None:
    claim = make_tiny(name)

    assert claim.run(ignore, seed=5) == claim.run(ignore, seed=5)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("association", {"longer": 24}, "all tokens differ"),
        ("bottleneck", {"max_length": 4}, "two that are not longer than max_length"),
        ("convolution_by_attention", {"side": 2}, "at least two are needed"),
        ("data_hunger", {"sizes": [50, 20]}, "must rise"),
        ("double_if", {"most": 8}, "the first token is not counted"),
        ("hardware_efficiency", {"models": ["detr_r50"]}, "models"),
        ("far_parts", {"distances": [2, 3]}, "one below 5, and a greater one that fits"),
        ("length_cost", {"fit_from": 4000}, "at least two of them reach fit_from"),
        ("length_cost", {"lengths": [2048, 1024]}, "must rise"),
        ("receptive_field", {"depths": [9]}, "does not fit into a size of 48"),
        ("receptive_field", {"size": 50}, "not a multiple of two windows"),
        ("permutation", {"num_tokns": 3}, "Did you mean 'num_tokens'"),
        ("split_heads", {"num_heads": 5}, "num_heads must divide"),
        ("split_heads", {"length": 23}, "length be below num_symbols"),
        ("typographic", {"template": "a photo"}, "needs one {} for the name"),
        ("typographic", {"template_with_word": "a {} with a word"}, "needs {word}"),
        ("typographic", {"weights": "hf:a/b"}, "belong together"),
        ("typographic", {"images": "photos"}, "belong together"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        CLAIMS[name].with_changes(changes)


def test_self_attention_is_equivariant_and_a_leak_of_positions_is_noticed() -> None:
    claim = Permutation(num_seeds=2)
    rows = claim.run(ignore, seed=0)
    assert claim.judge(rows).verdict == "holds"

    leaking = [change(row, error=0.1) if row.layer == "attention" else row for row in rows]
    assert claim.judge(leaking).verdict == "does not hold"

    blind = [change(row, error=0.0) if row.layer == "rotary" else row for row in rows]
    assert claim.judge(blind).verdict == "partly"


def test_scaled_scores_keep_the_gradient_and_the_claim_needs_both_halves() -> None:
    claim = ScoreScaling(num_seeds=1, dims=(4, 64, 1024), num_queries=128)
    rows = claim.run(ignore, seed=0)
    assert claim.judge(rows).verdict == "holds"

    alive = [change(row, median_gradient=0.2) for row in rows]
    assert claim.judge(alive).verdict == "partly"

    steady = [change(row, score_std=1.0) for row in alive]
    assert claim.judge(steady).verdict == "does not hold"

    falling = [change(row, score_std=1.0 - 1e-4 * (row.dim == 64)) for row in rows if row.dim < 1024]
    assert claim.judge(falling).measured.endswith("exponents are 0.00 and 0.00"), "zero has no sign"


def test_receptive_fields_are_those_of_the_formulas_and_one_row_more_is_noticed() -> None:
    claim = ReceptiveField(num_seeds=1, depths=(1, 3))
    rows = claim.run(ignore, seed=0)
    seen = {(row.stack, row.depth): row.measured for row in rows}
    assert seen["stacked", 3] == 7
    assert seen["strided", 3] == seen["dilated", 3] == 15
    assert (seen["windows", 3], seen["shifted windows", 3], seen["global", 1]) == (8, 24, 48)
    assert claim.judge(rows).verdict == "holds"

    everywhere = [change(row, influential_positions=row.seen_positions) for row in rows]
    assert claim.judge(everywhere).verdict == "partly"

    wider = [change(row, measured=row.measured + 1) if row.stack == "dilated" else row for row in rows]
    assert claim.judge(wider).verdict == "does not hold"


def make_costs(*, attention: float, step: float, memory: float = 1.0) -> Sequence[LengthRow]:
    """Return times and memory that follow powers of the length, constant for all but attention."""
    rows: list[LengthRow] = []
    for layer in LENGTH_LAYERS:
        exponent, slope, growth = (attention, step, memory) if layer == "attention" else (0.0, 0.0, 0.0)
        for length in (16, 512, 1024, 4096):
            us, per_token = 3.0 * length**exponent, 9.0 * length**growth
            rows += [
                ForwardRow(layer=layer, length=length, batch=1, us_per_token=us, sequential_operations=1),
                StepRow(layer=layer, length=length, us=7.0 * length**slope),
                MemoryRow(
                    layer=layer, length=length, fused_bytes=0, attention_bytes=0, bytes_per_token=per_token
                ),
            ]
    return rows


def make_copies(*, vector: tuple[float, float], attention: tuple[float, float]) -> list[CopiedRow]:
    """Return the accuracies of two seeds at two lengths."""
    return [
        CopiedRow(
            context=context, seed=seed, length=length, was_trained=True, accuracy=accuracy, parameters=11
        )
        for context, accuracies in (("one vector", vector), ("attention", attention))
        for length, accuracy in zip((2, 20), accuracies, strict=True)
        for seed in (0, 1)
    ]


def make_longer_copies() -> list[CopiedRow]:
    """Return rows of untrained lengths, which would decide otherwise."""
    rows = make_copies(vector=(1.0, 0.9), attention=(1.0, 1.0))
    further = [change(row, length=99, was_trained=False) for row in rows]
    return [*rows, *(change(row, accuracy=float(row.context == "attention")) for row in further)]


def make_trainings(*, post: int, pre: int, exponents: tuple[float, float] = (0.0, -0.5)) -> list[Row]:
    """Return gradients of last blocks by powers of the depth, and three runs each, of which some failed."""
    rows: list[Row] = []
    for norm, failed, exponent in (("post", post, exponents[0]), ("pre", pre, exponents[1])):
        rows += [
            GradientRow(norm=norm, depth=depth, block=depth, gradient_norm=0.3 * depth**exponent)
            for depth in (2, 8, 32)
        ]
        fields = {"norm": norm, "depth": 6, "learning_rate": 0.003, "loss": 1.0, "guessing_loss": 1.5}
        rows += [TrainedRow(**fields, seed=seed, failed=seed < failed) for seed in range(3)]
    return rows


def make_structures(*, associated: float, gain: float, error: float = 1e-5) -> list[SpatialRow]:
    rows: list[SpatialRow] = [
        WrittenRow(alpha=1, seed=0, error=1.0),
        WrittenRow(alpha=9, seed=0, error=error),
    ]
    for structure in STRUCTURES:
        fields = {"structure": structure, "seed": 0, "accuracy": 0.99}
        for layer, share in zip(LAYERS, (associated, 0.0), strict=True):
            rows.append(StructureRow(**fields, layer=layer, associated=share))
        for attention, accuracy in (("kept", 0.6 + gain), ("new", 0.6)):
            fields = {"structure": structure, "attention": attention, "seed": 0, "num_images": 9}
            rows.append(TransferRow(**fields, accuracy=accuracy))
    return rows


def make_scenes(*, near: float, far: float, attention: float) -> list[SceneRow]:
    return [
        SceneRow(layer=layer, distance=distance, seed=0, accuracy=accuracy, parameters=7)
        for distance, convolution in ((2, near), (9, far))
        for layer, accuracy in (("convolution", convolution), ("attention", attention))
    ]


def make_leads(*, few: float, many: float) -> list[HungerRow]:
    """Return rows in which the ResNet leads by so much."""
    return [
        HungerRow(
            data="any",
            model=name,
            num_images=size,
            seed=seed,
            accuracy=0.6 + (lead if name == "ResNet" else 0.0),
            parameters=11,
        )
        for name in MODELS
        for size, lead in ((100, few), (1000, many))
        for seed in (0, 1)
    ]


def make_norms(*, padding: float, mode: float, layer: float = 0.0) -> list[NormRow]:
    """Return rows of batch norm with these changes, and of layer norm with others."""
    fields = {"training_loss": 1.0, "evaluation_loss": 1.0, "accuracy": 0.9}
    changes = (("batch", padding, mode), ("layer", layer, 0.0))
    return [
        NormRow(norm=norm, seed=seed, padding_change=change, mode_change=gap, **fields)
        for norm, change, gap in changes
        for seed in (0, 1)
    ]


def make_heads(*, whole: float, split: float) -> list[HeadsRow]:
    """Return errors of two seeds; those of other layers would decide otherwise."""
    errors = dict.fromkeys(HEADS, 0.5) | {"whole": whole, "split": split}
    return [
        HeadsRow(layer=layer, seed=seed, error=error * (1 + seed), parameters=11)
        for layer, error in errors.items()
        for seed in (0, 1)
    ]


def make_functions(*, last: float, attention: float, convolution: float) -> list[FunctionRow]:
    """Return built and trained rows, and rows of longer sequences that would decide otherwise."""
    rows: list[FunctionRow] = [
        BuiltRow(alpha=alpha, seed=0, greatest_error=error) for alpha, error in ((1.0, 0.5), (9.0, last))
    ]
    for layer, error in zip(TOKEN_LAYERS, (attention, convolution, 0.0), strict=True):
        fields = {"layer": layer, "seed": 0, "parameters": 11}
        rows.append(LearnedRow(**fields, length=8, was_trained=True, error=error))
        rows.append(LearnedRow(**fields, length=20, was_trained=False, error=0.2))
    return rows


def make_paths(*, lost: float, kept: float) -> list[PathRow]:
    """Return gradients of which so much is left at the end: without attention in all, with it of the half."""
    fields = {"seed": 0}
    return [
        PathRow(**fields, cell=cell, context=context, distance=distance, gradient=gradient)
        for cell in RECURRENT_CELLS
        for context, gradients in (("one vector", (1.0, 1.0, lost)), ("attention", (1.0, 0.1, 0.1 * kept)))
        for distance, gradient in zip((1, 50, 100), gradients, strict=True)
    ]


def make_connections(
    *, short: float = 1.0, rare: float = 0.5, exponent: float = 2.0, beyond: float | None = None
) -> list[ConnectedRow]:
    """Return accuracies at a frequent, a rare and a longer length; attention gets 0.9 of the rare one."""
    return [
        ConnectedRow(
            connection=connection,
            seed=seed,
            length=length,
            trained_share=share,
            parameters=11 if connection == "attention" else round(1000 * (length + 1) ** exponent),
            accuracy=accuracy,
        )
        for connection, accuracies in (("all states", (short, rare, beyond)), ("attention", (1.0, 0.9, 0.2)))
        for length, share, accuracy in zip((2, 12, 16), (0.4, 0.01, 0.0), accuracies, strict=True)
        for seed in (0, 1)
    ]


def make_lookups(*, errors: tuple[float, ...], left: float = 1e-9, change: float = 0.0) -> list[LookupRow]:
    gradients = (*[1.0] * (len(errors) - 1), left)
    return [
        LookupRow(scale=2.0**index, seed=0, error=error, gradient=gradient, hard_change=change)
        for index, (error, gradient) in enumerate(zip(errors, gradients, strict=True))
    ]


def change(row: Row, **values: object) -> Any:
    return row.model_copy(update=values)


@pytest.mark.parametrize(
    ("name", "rows", "verdict"),
    [
        ("association", make_functions(last=1e-5, attention=0.001, convolution=0.4), "holds"),
        ("association", make_functions(last=1e-5, attention=0.1, convolution=0.4), "partly"),
        ("association", make_functions(last=1e-5, attention=0.001, convolution=0.1), "partly"),
        ("association", make_functions(last=0.1, attention=0.001, convolution=0.4), "does not hold"),
        ("batch_norm", make_norms(padding=0.1, mode=0.1), "holds"),
        ("batch_norm", make_norms(padding=0.1, mode=0.04), "partly"),
        ("batch_norm", make_norms(padding=0.1, mode=0.1, layer=0.001), "partly"),
        ("batch_norm", make_norms(padding=0.04, mode=0.04), "does not hold"),
        ("bottleneck", make_copies(vector=(1.0, 0.3), attention=(1.0, 0.95)), "holds"),
        ("bottleneck", make_copies(vector=(0.4, 0.3), attention=(1.0, 0.95)), "partly"),
        ("bottleneck", make_copies(vector=(1.0, 0.3), attention=(1.0, 0.7)), "partly"),
        ("bottleneck", make_copies(vector=(1.0, 0.9), attention=(1.0, 1.0)), "does not hold"),
        ("bottleneck", make_longer_copies(), "does not hold"),
        ("convolution_by_attention", make_structures(associated=1.0, gain=0.2), "holds"),
        ("convolution_by_attention", make_structures(associated=1.0, gain=0.05), "partly"),
        ("convolution_by_attention", make_structures(associated=0.8, gain=0.2), "does not hold"),
        ("convolution_by_attention", make_structures(associated=1.0, gain=0.2, error=0.1), "does not hold"),
        ("data_hunger", make_leads(few=0.10, many=0.04), "holds"),
        ("data_hunger", make_leads(few=0.10, many=0.06), "partly"),
        ("data_hunger", make_leads(few=0.02, many=-0.10), "does not hold"),
        ("far_parts", make_scenes(near=1.0, far=0.74, attention=0.99), "holds"),
        ("far_parts", make_scenes(near=0.9, far=0.74, attention=0.99), "partly"),
        ("far_parts", make_scenes(near=1.0, far=0.74, attention=0.94), "partly"),
        ("far_parts", make_scenes(near=1.0, far=0.9, attention=0.99), "does not hold"),
        ("far_parts", make_scenes(near=1.0, far=0.5, attention=0.5), "does not hold"),
        ("gradient_paths", make_paths(lost=1e-6, kept=0.9), "holds"),
        ("gradient_paths", make_paths(lost=0.1, kept=0.9), "partly"),
        ("gradient_paths", make_paths(lost=1e-6, kept=0.1), "does not hold"),
        ("length_cost", make_costs(attention=1.0, step=1.0), "holds"),
        ("length_cost", make_costs(attention=1.0, step=0.0), "partly"),
        ("length_cost", make_costs(attention=0.5, step=1.0), "partly"),
        ("length_cost", make_costs(attention=0.2, step=1.0), "does not hold"),
        ("length_cost", make_costs(attention=1.0, step=1.0, memory=0.5), "partly"),
        ("split_heads", make_heads(whole=0.01, split=0.21), "holds"),
        ("split_heads", make_heads(whole=0.01, split=0.19), "partly"),
        ("split_heads", make_heads(whole=0.01, split=0.03), "does not hold"),
        ("naive_connection", make_connections(), "holds"),
        ("naive_connection", make_connections(rare=0.8), "partly"),
        ("naive_connection", make_connections(short=0.8), "partly"),
        ("naive_connection", make_connections(exponent=1.0), "does not hold"),
        ("naive_connection", make_connections(beyond=0.3), "does not hold"),
        ("pre_norm", make_trainings(post=3, pre=0), "holds"),
        ("pre_norm", make_trainings(post=2, pre=0), "holds"),
        ("pre_norm", make_trainings(post=3, pre=1), "partly"),
        ("pre_norm", make_trainings(post=1, pre=0), "partly"),
        ("pre_norm", make_trainings(post=3, pre=0, exponents=(-0.5, -0.5)), "partly"),
        ("pre_norm", make_trainings(post=0, pre=0, exponents=(0.0, 0.0)), "does not hold"),
        ("soft_lookup", make_lookups(errors=(1.0, 0.1, 1e-6)), "holds"),
        ("soft_lookup", make_lookups(errors=(1.0, 0.1, 1e-6), left=0.1), "partly"),
        ("soft_lookup", make_lookups(errors=(1.0, 0.1, 1e-6), change=0.2), "partly"),
        ("soft_lookup", make_lookups(errors=(1.0, 0.1, 0.05)), "does not hold"),
        ("soft_lookup", make_lookups(errors=(0.1, 1.0, 1e-6)), "does not hold"),
    ],
)
def test_the_rows_decide_the_verdict(name: str, rows: list[Any], verdict: str) -> None:
    assert CLAIMS[name].judge(rows).verdict == verdict


def test_a_loss_that_is_not_finite_is_a_failure() -> None:
    (row,) = PreNorm(width=8, batch_size=3, num_steps=10)._train("post", 1, 1e30, 0)

    assert row.failed
    assert row.loss is None


def test_an_exponent_is_the_slope_of_the_logarithms_and_the_stronger_condition_decides_first() -> None:
    assert fit_exponent([2, 4, 8], [5, 5, 5]) == pytest.approx(0.0, abs=1e-12)
    assert fit_exponent([2, 4, 8], [1, 8, 64]) == pytest.approx(3.0)
    assert decide(holds=True, partly=False) == "holds"
    assert decide(holds=False, partly=False) == "does not hold"


def ignore(progress: Progress) -> None:
    """Do nothing with it."""
