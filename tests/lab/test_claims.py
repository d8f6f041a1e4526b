"""What every claim must do, and each claim measured in moments, with a criterion that can fail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import vitrail.lab
from vitrail.core.errors import ConfigError
from vitrail.lab import CLAIMS
from vitrail.lab.bottleneck import Bottleneck, CopiedRow
from vitrail.lab.harness import Progress, Row, Verdict, decide, fit_exponent, measure
from vitrail.lab.length_cost import (
    LAYERS,
    WINDOW,
    ForwardRow,
    LengthCost,
    LengthRow,
    MemoryRow,
    StepRow,
    build_layer,
    count_memory,
    forward_of,
)
from vitrail.lab.permutation import Permutation
from vitrail.lab.pre_norm import GradientRow, PreNorm, TrainedRow
from vitrail.lab.receptive_field import ReceptiveField
from vitrail.lab.score_scaling import ScoreScaling

# Little enough to be measured in moments; what the claims say then is not looked at.
TINY: dict[str, dict[str, Any]] = {
    "association": {
        "alphas": [1, 5],
        "num_symbols": 7,
        "length": 3,
        "longer": 5,
        "num_steps": 2,
        "batch_size": 5,
        "num_tested": 11,
        "num_seeds": 1,
    },
    "bottleneck": {
        "hidden_dim": 6,
        "embedding_dim": 5,
        "max_length": 3,
        "lengths": [1, 3, 4],
        "num_steps": 2,
        "num_tested": 2,
        "num_seeds": 1,
    },
    "convolution_by_attention": {
        "alphas": [1],
        "side": 4,
        "dim": 3,
        "num_steps": 2,
        "batch_size": 5,
        "num_few": 3,
        "few_steps": 2,
        "num_tested": 7,
        "num_seeds": 1,
    },
    "data_hunger": {
        "data": "digits",
        "sizes": [3, 5],
        "image_size": 8,
        "width": 16,
        "depth": 1,
        "num_steps": 11,
        "batch_size": 4,
        "num_tested": 7,
        "num_seeds": 1,
    },
    "double_if": {
        "alphas": [1, 5],
        "num_symbols": 5,
        "length": 4,
        "longer": 6,
        "most": 2,
        "num_steps": 2,
        "batch_size": 5,
        "num_tested": 11,
        "num_seeds": 1,
    },
    "length_cost": {
        "width": 8,
        "lengths": [8, 16, 32],
        "fit_from": 16,
        "batches": [3],
        "batch_length": 16,
        "tokens_per_timing": 32,
        "repeats": 1,
    },
    "model_sizes": {"parts": ["parameters"]},
    "permutation": {"dim": 12, "num_tokens": 7, "num_seeds": 2},
    "pre_norm": {
        "width": 8,
        "gradient_depths": [1, 2],
        "depths": [1],
        "learning_rates": [0.001],
        "num_seeds": 1,
        "num_steps": 2,
        "batch_size": 3,
    },
    "receptive_field": {"size": 16, "window": 4, "depths": [1, 2], "deep": 7, "dim": 4, "num_seeds": 1},
    "score_scaling": {"dims": [4, 64], "num_queries": 7, "num_keys": 5, "num_seeds": 2},
    "typographic": {
        "num_seeds": 1,
        "num_tested": 9,
        "num_calibration": 7,
        "size": 32,
        "width": 8,
        "num_scenes": 20,
        "num_steps": 1,
        "batch_size": 8,
    },
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_complete_and_named_like_its_file(name: str) -> None:
    claim = CLAIMS[name]

    assert (Path(vitrail.lab.__file__).parent / f"{name}.py").exists()
    for text in (claim.statement, claim.source, claim.published, claim.criterion):
        assert len(text) > 20
    assert "olds if" in claim.criterion
    assert name in TINY, "measure it here, too"


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_measured_judged_and_drawn(name: str) -> None:
    claim, told = CLAIMS[name].with_changes(TINY[name]), list[Progress]()

    result, picture = measure(claim, seed=3, progress=told.append)

    assert picture.startswith(b"\x89PNG")
    assert result.verdict in get_args(Verdict)
    assert any(character.isdigit() for character in result.measured)
    assert [event.done for event in told] == sorted(event.done for event in told)
    assert told[-1].done == told[-1].total
    for table in result.tables:
        assert table.caption
        assert all(table.columns.values()), "a column without a meaning"
        assert table.rows


@pytest.mark.parametrize(
    "name", ["bottleneck", "permutation", "pre_norm", "receptive_field", "score_scaling"]
)
def test_the_same_seed_measures_the_same(name: str) -> None:
    claim = CLAIMS[name].with_changes(TINY[name])

    assert claim.run(ignore, seed=5) == claim.run(ignore, seed=5)


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


def test_an_exponent_that_is_zero_has_no_sign() -> None:
    claim = ScoreScaling(num_seeds=1, dims=(4, 64), num_queries=7)
    rows = claim.run(ignore, seed=0)

    falling = [change(row, score_std=1.0 - 1e-4 * (row.dim == 64)) for row in rows]

    assert claim.judge(falling).measured.endswith("exponents are 0.00 and 0.00")


def test_receptive_fields_are_those_of_the_formulas_and_one_row_more_is_noticed() -> None:
    claim = ReceptiveField(num_seeds=1, depths=(1, 3))
    rows = claim.run(ignore, seed=0)
    seen = {(row.stack, row.depth): row.measured for row in rows}
    assert seen["stacked", 3] == 7
    assert seen["strided", 3] == seen["dilated", 3] == 15
    assert (seen["windows", 3], seen["shifted windows", 3], seen["global", 1]) == (8, 24, 48)
    assert claim.judge(rows).verdict == "holds"

    everywhere = [change(row, influential_cells=row.seen_cells) for row in rows]
    assert claim.judge(everywhere).verdict == "partly"

    wider = [change(row, measured=row.measured + 1) if row.stack == "dilated" else row for row in rows]
    assert claim.judge(wider).verdict == "does not hold"


def test_the_costs_of_length_are_judged_by_exponents_and_by_the_cache() -> None:
    claim = LengthCost()

    assert claim.judge(make_costs(attention=1.0, others=0.0, step=1.0)).verdict == "holds"
    assert claim.judge(make_costs(attention=1.0, others=0.0, step=0.0)).verdict == "partly"
    assert claim.judge(make_costs(attention=0.5, others=0.0, step=1.0)).verdict == "partly"
    assert claim.judge(make_costs(attention=0.2, others=0.0, step=1.0)).verdict == "does not hold"
    assert claim.judge(make_costs(attention=1.0, others=0.0, step=1.0, memory=0.5)).verdict == "partly"


def test_the_memory_of_attention_is_counted_by_its_weights() -> None:
    short, long = (count_memory("attention", 8, length) for length in (64, 256))
    assert short.attention_bytes == 4 * 4 * 64 * 64  # heads, bytes, queries, keys
    assert long.attention_bytes == 16 * short.attention_bytes
    assert long.bytes < 5 * short.bytes  # the fused kernel writes no weights
    assert count_memory("windows", 8, 4 * WINDOW).attention_bytes == 4 * 4 * 4 * WINDOW * WINDOW
    assert count_memory("recurrent", 8, 64).attention_bytes == 0


def test_windows_see_their_own_tokens_alone() -> None:
    x = torch.randn(1, WINDOW + 5, 8, requires_grad=True)  # a length that is no multiple
    forward_of(build_layer("windows", 8), x)()[0, 2].sum().backward()
    assert x.grad is not None
    seen = x.grad.abs().sum(dim=-1)[0] > 0
    assert seen[:WINDOW].all()
    assert not seen[WINDOW:].any()


def test_the_bottleneck_needs_a_gap_a_fall_and_an_attention_that_copies() -> None:
    claim = Bottleneck()

    assert claim.judge(make_copies(vector=(1.0, 0.3), attention=(1.0, 0.95))).verdict == "holds"
    assert claim.judge(make_copies(vector=(0.4, 0.3), attention=(1.0, 0.95))).verdict == "partly"
    assert claim.judge(make_copies(vector=(1.0, 0.3), attention=(1.0, 0.7))).verdict == "partly"
    assert claim.judge(make_copies(vector=(1.0, 0.9), attention=(1.0, 1.0))).verdict == "does not hold"


def test_sequences_longer_than_the_trained_ones_do_not_decide() -> None:
    rows = make_copies(vector=(1.0, 0.9), attention=(1.0, 1.0))
    rows += [
        change(row, length=99, was_trained=False, accuracy=0.0) for row in rows if row.context == "one vector"
    ]
    rows += [change(row, length=99, was_trained=False) for row in rows if row.context == "attention"]

    assert Bottleneck().judge(rows).verdict == "does not hold"


def test_the_place_of_the_norms_is_judged_by_gradients_and_by_failures() -> None:
    claim = PreNorm()
    as_published = make_gradients(post=0.0, pre=-0.5)

    assert claim.judge([*as_published, *make_runs(post=3, pre=0)]).verdict == "holds"
    assert claim.judge([*as_published, *make_runs(post=2, pre=0)]).verdict == "holds"
    assert claim.judge([*as_published, *make_runs(post=3, pre=1)]).verdict == "partly"
    assert claim.judge([*as_published, *make_runs(post=1, pre=0)]).verdict == "partly"
    assert claim.judge([*make_gradients(post=-0.5, pre=-0.5), *make_runs(post=3, pre=0)]).verdict == "partly"
    assert (
        claim.judge([*make_gradients(post=0.0, pre=0.0), *make_runs(post=0, pre=0)]).verdict
        == "does not hold"
    )


def test_a_loss_that_is_no_number_is_a_failure() -> None:
    claim = PreNorm(width=8, batch_size=3, num_steps=10)

    row = claim._train("post", 1, 1e30, 0)

    assert row.failed
    assert row.loss is None


def test_an_exponent_is_the_slope_of_the_logarithms() -> None:
    assert fit_exponent([2, 4, 8], [5, 5, 5]) == pytest.approx(0.0, abs=1e-12)
    assert fit_exponent([2, 4, 8], [1, 8, 64]) == pytest.approx(3.0)


def test_the_stronger_condition_decides_first() -> None:
    assert decide(holds=True, partly=False) == "holds"
    assert decide(holds=False, partly=False) == "does not hold"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bottleneck", {"max_length": 4}, "two that are not longer than max_length"),
        ("length_cost", {"fit_from": 4000}, "at least two of them reach fit_from"),
        ("length_cost", {"lengths": [2048, 1024]}, "must rise"),
        ("receptive_field", {"depths": [9]}, "does not fit into a size of 48"),
        ("receptive_field", {"size": 50}, "no multiple of two windows"),
        ("permutation", {"num_tokns": 3}, "Did you mean 'num_tokens'"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        CLAIMS[name].with_changes(changes)


def ignore(progress: Progress) -> None:
    """Do nothing with it."""


def change(row: Row, **values: object) -> Any:
    return row.model_copy(update=values)


def make_costs(*, attention: float, others: float, step: float, memory: float = 1.0) -> Sequence[LengthRow]:
    """Return times and memory that follow powers of the length."""
    rows: list[LengthRow] = []
    for layer in LAYERS:
        exponent, slope = (attention, step) if layer == "attention" else (others, 0.0)
        for length in (16, 512, 1024, 4096):
            rows += [
                ForwardRow(
                    layer=layer,
                    length=length,
                    batch=1,
                    us_per_token=3.0 * length**exponent,
                    sequential_operations=1,
                ),
                StepRow(layer=layer, length=length, us=7.0 * length**slope),
                MemoryRow(
                    layer=layer,
                    length=length,
                    fused_bytes=0,
                    attention_bytes=0,
                    bytes_per_token=9.0 * length ** (memory if layer == "attention" else 0.0),
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


def make_gradients(*, post: float, pre: float) -> list[GradientRow]:
    """Return gradients of last blocks that follow powers of the depth."""
    return [
        GradientRow(norm=norm, depth=depth, block=depth, gradient_norm=0.3 * depth**exponent)
        for norm, exponent in (("post", post), ("pre", pre))
        for depth in (2, 8, 32)
    ]


def make_runs(*, post: int, pre: int) -> list[TrainedRow]:
    """Return three runs of each kind, of which so many failed."""
    return [
        TrainedRow(
            norm=norm,
            depth=6,
            learning_rate=0.003,
            seed=seed,
            loss=1.0,
            guessing_loss=1.5,
            failed=seed < count,
        )
        for norm, count in (("post", post), ("pre", pre))
        for seed in range(3)
    ]
