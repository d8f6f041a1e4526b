from __future__ import annotations

import pytest

from vitrail.engines.bench import BenchReport, BenchResult, summarise


def test_figures_follow_from_the_seconds_of_passes() -> None:
    figures = summarise([[0.5, 0.3], [0.4, 0.4], [1.0, 1.0]], batch=2, gflops=10, ceilings=[100, 200, 40])

    assert figures.images_per_s == 5.0
    assert figures.p50_ms == pytest.approx(450)
    assert figures.p99_ms == 1000
    assert figures.ceiling_share == pytest.approx(0.5)  # 50 / 100, 50 / 200, 20 / 40


def test_without_a_product_there_is_no_share() -> None:
    assert summarise([[0.5]], batch=1, gflops=10, ceilings=None).ceiling_share is None


def report(*cells: BenchResult) -> BenchReport:
    return BenchReport(
        name="vit_nano",
        size=(24, 16),
        gmacs=0.5,
        machine="a processor, 2 cores",
        threads=2,
        rounds=3,
        product=(2048, 256, 288),
        ceilings={"float32": 400.0},
        images="64 generated images",
        results=cells,
        versions={"torch": "2"},
    )


def test_the_best_is_the_fastest_that_agrees() -> None:
    slow = BenchResult(engine="torch", precision="float32", batch=1, images_per_s=3, agrees=True)
    fast = BenchResult(engine="openvino", precision="float32", batch=1, images_per_s=5, agrees=True)
    wrong = BenchResult(engine="openvino", precision="int8", batch=1, images_per_s=9, reason="differs")

    gone = fast.with_changes({"images_per_s": 8, "is_kept": False})
    assert report(slow, fast, wrong, gone).best(1) == fast
    assert report(wrong).best(1) is None
    assert report(slow).best(8) is None
