"""What a comparison shows on a terminal: lines for every event, and a table that fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitrail.cli.show.studies import fit_columns, show_comparing, show_comparison
from vitrail.studies.comparing import Compared, Judging, RunBegan, RunEnded, RunWent
from vitrail.studies.comparison import ComparedRun, Comparison, Figures, PairTest, stand

FIGURES = Figures(
    score=0.875,
    lower=0.8,
    upper=0.93,
    samples="photos@1a|test|40",
    parameters=1_234_567,
    macs=45_600_000,
    samples_per_s=1234.4,
    peak_memory_mib=512.3,
    steps=12_000,
    training_s=3.5,
)
LONG = "synthesizer_factorized_dense"


@pytest.fixture
def runs() -> tuple[ComparedRun, ...]:
    return (
        ComparedRun(name=LONG, seed=0, folder="a", figures=FIGURES),
        ComparedRun(name="lstm", seed=0, error="out of memory"),
        ComparedRun(name="mlp", seed=0, folder="b", figures=FIGURES.with_changes({"score": 0.5})),
    )


def test_every_event_is_a_line_where_there_is_no_terminal(runs, capsys):
    with show_comparing() as listen:
        listen(RunBegan(LONG, 0, 1, 3, 90.0, is_timed=True))
        listen(RunWent("step 5/10"))
        listen(RunEnded(runs[0], "accuracy", 1, 3))
        listen(RunBegan("lstm", 0, 2, 3, 90.0, is_timed=False))
        listen(RunEnded(runs[1], "accuracy", 2, 3))
        listen(Judging())
    assert capsys.readouterr().out.splitlines() == [
        f"1/3 {LONG}, seed 0, about 4m 30s left",
        f"1/3 {LONG}, seed 0: step 5/10",
        f"{LONG}, seed 0: accuracy 87.5%, 12,000 steps, 1,234 samples/s",
        "2/3 lstm, seed 0",
        "lstm, seed 0 failed: out of memory",
        "testing the differences",
    ]


def test_the_table_the_tests_and_the_sentences_fit_80_columns(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    comparison = Comparison(
        kind="mixer",
        data="photos",
        score="accuracy",
        budget_s=90,
        runs=runs,
        standings=(stand(runs[:1], (0.8, 1.0)), stand(runs[2:], (0.0, 0.93))),
        pairs=(
            PairTest(
                first=LONG,
                second="synthesizer_factorized",
                difference=0.375,
                lower=-0.1,
                upper=0.9,
                p=0.0001,
                p_corrected=0.31,
                test="mcnemar",
            ),
        ),
        statements=("A sentence that says what is known, and that is longer than a line of a terminal.",),
    )

    show_comparison(Compared(Path("runs/c"), comparison))

    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[:4] == ["mixer", "accuracy", "95", "%"]
    assert lines[1].split()[:3] == [LONG, "87.5%", "80.0-100.0"]
    assert any("-10.0 to +90.0" in line and "not shown" in line for line in lines)
    assert lines[-1] == "report runs/c/comparison.html"
    assert shown.err == "vitrail: failed: lstm, seed 0: out of memory\n"


def test_columns_are_left_out_from_the_right_until_a_table_fits():
    header, rows = ["a", "b", "c", "d", "e", "f", "gg"], [["1", "2", "3", "4", "5", "6", "77"]]
    assert fit_columns(header, rows, 14) == (header, rows)
    assert fit_columns(header, rows, 13) == (header[:6], [rows[0][:6]])
    assert fit_columns(header, rows, 3) == (header[:5], [rows[0][:5]])
