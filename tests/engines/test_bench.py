from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail.engines.bench as bench_module
import vitrail.engines.turns as turns_module
from making.small_exports import generated, small_detr, small_vit
from vitrail.engines.bench import BenchReport, BenchSettings, bench, summarise
from vitrail.engines.choice import CHOICES_FILE, BenchResult, read_choices
from vitrail.engines.remote import EngineError, EngineServer, RemoteEngine
from vitrail.models.checkpoint import LoadedModel
from vitrail.train.machine import best_precision


class EngineInThisProcess(RemoteEngine):
    """A ``RemoteEngine`` without a process, whose start takes seconds."""

    def _start(self) -> None:
        self.server = EngineServer()
        self._ask(do="start", **self._settings)

    def _ask(self, **request: Any) -> dict[str, Any]:
        try:
            return getattr(self.server, request.pop("do"))(**request)
        except ValueError as error:
            raise EngineError(str(error)) from error

    def _end(self) -> None:
        return None

    def revive(self) -> None:
        return None


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "RemoteEngine", EngineInThisProcess)
    monkeypatch.setattr(turns_module, "RemoteEngine", EngineInThisProcess)
    monkeypatch.setattr(turns_module, "ROUND_S", 0.01)


def measure(loaded: LoadedModel, settings: BenchSettings, **options: Any) -> BenchReport:
    return bench(loaded, settings, samples=generated(loaded), **options)


def settings(**changes: Any) -> BenchSettings:
    fields = {"batches": (1, 3), "engines": ("torch",), "precisions": ("float32", "int8"), "rounds": 2}
    return BenchSettings.from_tree({**fields, "threads": 1, **changes})


def test_every_engine_is_measured_and_the_fastest_that_agrees_is_stored(tmp_path: Path) -> None:
    loaded, stages = small_vit(), []

    report = measure(loaded, settings(), store=tmp_path / "engines", on_stage=stages.append)

    assert [(each.precision, each.batch) for each in report.results] == [
        ("float32", 1),
        ("int8", 1),
        ("float32", 3),
        ("int8", 3),
    ]
    assert all(each.ran and each.agrees and each.reason is None for each in report.results)
    assert all(each.p99_ms >= each.p50_ms > 0 and each.peak_mib > 10 for each in report.results)
    assert all(each.ceiling_share is not None and each.ceiling_share > 0 for each in report.results)
    assert report.ceilings.keys() == {"float32", "int8"}
    assert report.size == (24, 16)
    assert "round 2 of 2" in stages
    choices = read_choices(tmp_path / "engines", loaded)
    assert choices is not None
    # Ranges of generated images are none to predict with.
    assert {(each.precision, each.is_kept) for each in choices.measured} == {
        ("float32", True),
        ("int8", False),
    }


def test_what_cannot_run_keeps_its_place_with_the_reason() -> None:
    report = measure(small_vit(), settings(engines=("torch", "compiled"), precisions=("int8",)))

    ours, compiled = report.results[:2]
    assert ours.ran
    assert not compiled.ran
    assert compiled.reason == "compiled has no int8"
    assert report.folder is None


def test_a_detector_is_measured(tmp_path: Path) -> None:
    report = measure(small_detr(), settings(precisions=("float32",), batches=(2,)), store=tmp_path)

    assert [(each.batch, each.agrees) for each in report.results] == [(2, True)]
    assert (tmp_path / CHOICES_FILE).is_file()


def test_an_engine_whose_outputs_differ_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        EngineInThisProcess, "run", lambda self, inputs: (inputs[0].new_ones(len(inputs[0]), 3),)
    )

    report = measure(small_vit(), settings(precisions=("float32",)))

    assert all(each.ran and not each.agrees for each in report.results)
    assert "logits differ" in (report.results[0].reason or "")
    assert report.best(1) is None


def test_a_batch_that_ends_its_engine_leaves_the_other_batches_their_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def time(self: EngineInThisProcess, name: str, passes: int) -> list[float]:
        if name == "3":
            raise EngineError("the process was killed")
        return self.server.time(name, passes)["seconds"]

    monkeypatch.setattr(EngineInThisProcess, "time", time)

    report = measure(small_vit(), settings(precisions=("float32",)))

    one, three = report.results
    assert one.ran
    assert one.reason is None
    assert (three.ran, three.agrees, three.reason) == (False, False, "the process was killed")


def test_figures_outlive_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("no folder")

    report = measure(small_vit(), settings(precisions=("float32",)), store=tmp_path / "run" / "engines")

    assert all(each.ran for each in report.results)
    assert report.folder is None
    assert "could not be written" in (report.unstored or "")


def test_a_partial_bench_keeps_the_rest_of_a_full_one(tmp_path: Path) -> None:
    loaded = small_vit()
    measure(loaded, settings(precisions=("float32",)), store=tmp_path)

    measure(loaded, settings(precisions=("float32",), batches=(3,)), store=tmp_path)

    choices = read_choices(tmp_path, loaded)
    assert choices is not None
    assert sorted(each.batch for each in choices.measured) == [1, 3]


def test_bfloat16_is_measured_or_the_reason_is_said() -> None:
    report = measure(small_vit(), settings(precisions=("bfloat16",), batches=(1,)))

    (result,) = report.results
    assert result.ran == (best_precision(torch.device("cpu")) == "bfloat16")
    assert result.ran or "bfloat16" in (result.reason or "")


def test_figures_follow_from_the_seconds_of_passes() -> None:
    figures = summarise([[0.5, 0.3], [0.4, 0.4], [1.0, 1.0]], batch=2, gflops=10, ceilings=[100, 200, 40])

    # shares: 50 / 100, 50 / 200, 20 / 40
    expected = {"images_per_s": 5.0, "p50_ms": 450, "p99_ms": 1000, "ceiling_share": 0.5}
    assert figures == pytest.approx(expected)
    assert summarise([[0.5]], batch=1, gflops=10, ceilings=None)["ceiling_share"] is None


def test_the_best_is_the_fastest_that_agrees() -> None:
    slow = BenchResult(engine="torch", precision="float32", batch=1, images_per_s=3, agrees=True)
    fast = BenchResult(engine="openvino", precision="float32", batch=1, images_per_s=5, agrees=True)
    wrong = BenchResult(engine="openvino", precision="int8", batch=1, images_per_s=9, reason="differs")

    gone = fast.with_changes({"images_per_s": 8, "is_kept": False})
    report = measure(small_vit(), settings(precisions=("float32",), batches=(1,), rounds=1))

    assert report.model_copy(update={"results": (slow, fast, wrong, gone)}).best(1) == fast
    assert report.model_copy(update={"results": (wrong,)}).best(1) is None
    assert report.model_copy(update={"results": (slow,)}).best(8) is None
