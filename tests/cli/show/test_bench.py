from __future__ import annotations

import pytest

from vitrail.cli.show.studies import show_bench
from vitrail.engines.bench import BenchReport
from vitrail.engines.choice import BenchResult

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
    assert any(line.startswith("openvino    bfloat16") and line.endswith("0.87 *") for line in lines)
    assert any(
        line.startswith("onnxruntime bfloat16") and "ONNX Runtime has no bfloat16" in line for line in lines
    )
    said = " ".join(shown.split())
    assert "outputs differ: it loses 1.20 points of accuracy" in said
    assert "float32 440, bfloat16 930, int8 1,800" in said
    assert "runs/photos/engines" in shown

    show_bench(report.model_copy(update={"folder": None, "unstored": "runs could not be written: no space"}))

    assert "the choice is not stored: runs could not be written: no space" in capsys.readouterr().out
