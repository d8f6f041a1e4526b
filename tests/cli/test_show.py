"""What commands show while they run, and of their results."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from making.comparisons import make_run
from vitrail.cli.bench import show_bench
from vitrail.cli.comparing import fit_columns, show_comparing, show_comparison
from vitrail.cli.training import show_progress, show_report, show_training
from vitrail.engines.bench import BenchReport
from vitrail.engines.choice import BenchResult
from vitrail.studies.comparing import Compared, RunBegan, RunEnded
from vitrail.studies.comparison import ComparedRun, Comparison, PairTest, stand
from vitrail.tasks.preparing import Checked, Checking
from vitrail.tasks.registry import check
from vitrail.tasks.training import Began, Finished, PipelineEvent
from vitrail.train.evaluate import Report
from vitrail.train.events import Kept, Logged, Replanned, Saved, Started, Stepped, StoppedEarly, Validated

FOLDER = Path("runs") / "first"
EVENTS: list[PipelineEvent] = [
    Checking(64, 100),
    Checking(100, 100),
    Checked(check("digits")),
    Began(FOLDER),
    Saved(0, FOLDER / "checkpoints"),
    Started(0, 3),
    Stepped(3, 3),
    Logged(3, 3, 0.25, {"correct": 0.75}, 0.1, 1.0, 64.0, 2.0),
    Finished(),
]


def test_a_training_says_where_it_writes_how_it_goes_and_what_follows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    with show_training() as listen:
        for event in EVENTS:
            listen(event)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("digits")
    lines = lines[lines.index("choosing, and measuring a few steps ...") + 1 :]
    assert lines[:2] == [f"run {FOLDER}", "training for 3 steps"]
    assert lines[2].startswith("step 3/3, loss 0.250, training accuracy 0.750, 64 samples/s")
    assert lines[3:] == ["evaluating and writing the report ..."]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(is_terminal: bool) -> None:
    stream = io.StringIO()
    with show_progress(Console(file=stream, force_terminal=is_terminal, width=200)) as listen:
        listen(Saved(0, FOLDER))
        listen(Started(2, 5))
        listen(Stepped(3, 5))
        listen(Stepped(4, 5))
        listen(Validated(4, {"accuracy": 0.5, "count": 7}, 1.0))
        for former, steps in ((5, 9), (9, 3), (3, 7)):
            listen(Replanned(4, former, steps))
        listen(Logged(7, 7, 0.25, {"correct": 0.75}, 0.1, 1.0, 64.0, 2.0))
    correction = "the machine was faster than measured before: 7 steps instead of 5"
    assert stream.getvalue().count("the machine") == 1
    if is_terminal:
        assert correction in stream.getvalue()
        assert "loss 0.250, training accuracy 0.750" in stream.getvalue()
        assert "accuracy 0.5000" in stream.getvalue()
        return
    lines = stream.getvalue().splitlines()
    assert lines[0] == "resuming after step 2 of 5"
    assert lines[1] == "step 4, validation accuracy 0.5000"
    assert lines[2].startswith("step 7/7, loss 0.250, training accuracy 0.750, 64 samples/s")
    assert lines[3:] == [correction]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_an_early_end_and_the_best_step_are_shown(is_terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=is_terminal, color_system=None, width=200)
    with show_progress(console) as listen:
        listen(Started(0, 90))
        listen(Stepped(6, 90))
        listen(Logged(6, 90, 0.25, {}, 0.1, 1.0, 64.0, 2.0, items_per_s=1234.4, unit="tokens"))
        listen(StoppedEarly(6, 90, best_step=4, score="bleu", best=31.5))
        listen(Kept(4, 6, 31.5))
    text = stream.getvalue()
    assert "stopped early at step 6 of 90: bleu was best at step 4, 31.5000" in text
    assert "the weights of step 4 are kept, the best validation of 6 steps" in text
    if is_terminal:
        assert "loss 0.250, 1234 tokens/s" in text
        assert "6/6" in text


FAST = BenchResult(
    engine="openvino",
    precision="bfloat16",
    batch=8,
    images_per_s=1234.5,
    p50_ms=12345.6,
    p99_ms=23456.7,
    peak_mib=12345,
    ceiling_share=0.87,
    agrees=True,
)
WRONG = FAST.with_changes(
    {"precision": "int8", "agrees": False, "reason": "it loses 1.20 points of accuracy"}
)
FAILED = BenchResult(
    engine="onnxruntime",
    precision="bfloat16",
    batch=8,
    reason="ONNX Runtime has no bfloat16 on processors. Expected float32 or int8. Choose openvino or torch",
)


def test_the_table_fits_and_failed_engines_stay_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    report = BenchReport(
        name="vit_b16",
        size=(224, 224),
        gmacs=17.58,
        machine="AMD EPYC, 2 cores",
        threads=2,
        rounds=7,
        product=(2048, 768, 3072),
        ceilings={"float32": 440.4, "bfloat16": 930.0, "int8": 1800.0},
        images="the test split of photos",
        results=(FAST, FAILED, WRONG),
        versions={"torch": "2.13.0", "openvino": "2026.4.1"},
        folder="runs/photos/engines",
    )

    show_bench(report)

    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    lines = shown.splitlines()
    assert any(re.fullmatch(r"openvino +bfloat16 .* 87 +\* *", line) for line in lines)
    assert any(line.startswith("onnxruntime in bfloat16: ONNX Runtime has no bfloat16") for line in lines)
    said = " ".join(shown.split())
    assert "outputs differ: it loses 1.20 points of accuracy" in said
    assert "float32 440, bfloat16 930, int8 1,800" in said
    assert "runs/photos/engines" in shown

    show_bench(report.model_copy(update={"folder": None, "unstored": "runs could not be written: no space"}))

    assert "the choice is not stored: runs could not be written: no space" in capsys.readouterr().out


LONG = "synthesizer_factorized_dense"


@pytest.fixture
def runs() -> tuple[ComparedRun, ...]:
    return (
        make_run(LONG, 0, steps=12_000),
        ComparedRun(name="lstm", seed=0, error="out of memory"),
        make_run("mlp", 0, steps=12_000, score=0.5),
    )


def test_every_event_is_a_line_where_there_is_no_terminal(runs, capsys):
    with show_comparing() as listen:
        listen(RunBegan(LONG, 0, 1, 3, 90.0, is_timed=True))
        listen("step 5/10")
        listen(RunEnded(runs[0], "accuracy", 1, 3))
        listen(RunBegan("lstm", 0, 2, 3, 90.0, is_timed=False))
        listen(RunEnded(runs[1], "accuracy", 2, 3))
        listen("testing the differences")
    assert capsys.readouterr().out.splitlines() == [
        f"1/3 {LONG}, seed 0, about 4m 30s left",
        f"1/3 {LONG}, seed 0: step 5/10",
        f"{LONG}, seed 0: accuracy 87.5%, 12,000 steps, 1,234 samples/s",
        "2/3 lstm, seed 0",
        "lstm, seed 0 failed: out of memory",
        "2/3 lstm, seed 0: testing the differences",
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
    assert any("-10.0 to +90.0" in line and line.split()[-1] == "no" for line in lines)
    assert lines[-1] == "report runs/c/comparison.html"
    assert shown.err == "vitrail: failed: lstm, seed 0: out of memory\n"


def test_columns_are_left_out_from_the_right_until_a_table_fits():
    header, rows = ["a", "b", "c", "d", "e", "f", "gg"], [["1", "2", "3", "4", "5", "6", "77"]]
    assert fit_columns(header, rows, 14) == (header, rows)
    assert fit_columns(header, rows, 13) == (header[:6], [rows[0][:6]])
    assert fit_columns(header, rows, 3) == (header[:5], [rows[0][:5]])


def test_a_long_signature_takes_several_lines_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    signature = {
        "data": "flickr8k@6f1c9a02b7d4e815",
        "search": "beam 5, length penalty 0.7, at most 30 tokens",
        "scoring": "words lower-case,no punctuation; nrefs 5; case mixed; tok none; sacrebleu 2.6.0",
    }
    report = Report(signature=signature, scores={"bleu4": 0.25}, tables={})

    show_report(report, "photos/", "run")

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bleu4  0.2500"
    assert max(map(len, lines)) <= 80
    assert " ".join(lines[1:]) == report.signature_line
