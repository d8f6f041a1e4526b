from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from making.small_exports import images_for, save_loaded, small_vit, write_package
from vitrail.engines.choice import (
    BenchResult,
    EngineChoices,
    add_former,
    choices_folder,
    describe_machine,
    rank,
    read_choices,
    start_engine,
    write_choices,
)
from vitrail.engines.contract import Engine
from vitrail.engines.export.package import digest_model
from vitrail.engines.loading import merged_source
from vitrail.models.checkpoint import LoadedModel


def measured(engine: str, precision: str, batch: int, rate: float, **changes: object) -> BenchResult:
    fields = {"engine": engine, "precision": precision, "batch": batch, "images_per_s": rate, "agrees": True}
    return BenchResult.from_tree({**fields, **changes})


def choices_of(loaded: LoadedModel, *results: BenchResult, **changes: object) -> EngineChoices:
    fields = {"machine": describe_machine(), "threads": 1, "weights": digest_model(loaded)}
    return EngineChoices.from_tree({**fields, **changes, "measured": [each.model_dump() for each in results]})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save_loaded(tmp_path / "run" / "model", small_vit())
    return tmp_path / "run"


def start(run: Path, **changes: object) -> Engine:
    arguments = {"engine": "auto", "precision": None, "device": "cpu", "batch_size": 4, "calibration": []}
    return start_engine(run, **{"opened": small_vit(), **arguments, **changes})  # type: ignore[arg-type]


def test_the_fastest_of_the_nearest_batch_comes_first() -> None:
    choices = choices_of(
        small_vit(),
        measured("torch", "float32", 1, 9.0),
        measured("torch", "float32", 8, 5.0),
        measured("openvino", "float32", 8, 7.0),
        measured("torch", "bfloat16", 8, 8.0, agrees=False),
        measured("torch", "int8", 8, 11.0, is_kept=False),
    )

    assert [each.engine for each in rank(choices, 32)] == ["openvino", "torch"]
    assert [each.batch for each in rank(choices, 4)] == [1]
    assert rank(choices, 8, "bfloat16") == []


@pytest.mark.compiled
def test_what_was_measured_decides(run: Path) -> None:
    loaded = small_vit()
    write_choices(
        run / "engines",
        choices_of(loaded, measured("torch", "float32", 1, 3.0), measured("compiled", "float32", 1, 5.0)),
    )

    engine = start(run)

    assert (engine.name, engine.precision) == ("compiled", "float32")


def test_an_engine_that_does_not_start_gives_way_to_the_next(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = measured("openvino", "float32", 1, 9.0, package="openvino-float32")
    write_choices(run / "engines", choices_of(small_vit(), gone, measured("torch", "float32", 1, 3.0)))

    with caplog.at_level(logging.WARNING):
        engine = start(run)

    assert engine.name == "torch"
    assert "openvino in float32 does not start" in caplog.text


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("changes", "engine", "words"),
    [
        ({"machine": "another"}, "torch", "measured on another machine"),
        ({"weights": "others"}, "torch", "measured with other weights"),
        ({"threads": 2}, "compiled", "measured with 2 threads, and here are 1"),
    ],
)
def test_results_of_other_machines_and_weights_are_not_used_and_of_other_threads_with_a_warning(
    run: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, object], engine: str, words: str
) -> None:
    write_choices(
        run / "engines", choices_of(small_vit(), measured("compiled", "float32", 1, 9.0), **changes)
    )

    with caplog.at_level(logging.WARNING):
        assert start(run).name == engine

    assert words in caplog.text


def test_without_measurements_torch_runs_and_says_so(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        engine = start(run)

    (logits,) = engine.run((images_for(small_vit()),))
    assert (engine.name, tuple(logits.shape)) == ("torch", (5, 3))
    assert "vitrail bench" in caplog.text


def test_damaged_measurements_are_told(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run / "engines").mkdir()
    (run / "engines" / "engines.json").write_text("{")

    with caplog.at_level(logging.WARNING):
        assert read_choices(run / "engines", small_vit()) is None

    assert "cannot be used" in caplog.text


def test_named_models_are_kept_in_the_users_cache(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    loaded, other = small_vit(), small_vit()
    other.model.head.weight.data[0, 0] += 1

    assert choices_folder(run, loaded) == choices_folder(run / "model", loaded) == run / "engines"
    of_model = choices_folder(loaded, loaded)
    assert of_model is not None
    assert of_model.parent == tmp_path / "cache" / "vitrail" / "engines"
    assert of_model.name.startswith("vit_nano-")
    assert choices_folder(other, other) != of_model, "other weights of the name have another folder"


def test_a_digest_tells_weights_and_merged_tokens_apart() -> None:
    one, other = small_vit(), small_vit()
    assert digest_model(one) == digest_model(other)

    other.model.head.weight.data[0, 0] += 1

    assert digest_model(one) != digest_model(other)
    assert len({digest_model(merged_source(small_vit(), count)) for count in (0, 2, 3)}) == 3


def test_a_model_that_merges_tokens_runs_in_torch(caplog: pytest.LogCaptureFixture, run: Path) -> None:
    merged = merged_source(small_vit(), 2)
    folder = run / "engines"
    write_choices(folder, choices_of(merged, measured("compiled", "float32", 1, 9.0)))

    with caplog.at_level(logging.WARNING):
        engine = start(run, opened=merged)

    assert engine.name == "torch"
    assert "token merging" in caplog.text


def test_a_package_of_another_model_is_not_taken(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = small_vit()
    other.model.head.weight.data[0, 0] += 1  # of which a bench was interrupted before it stored its choice
    folder = run / "engines"
    folder.mkdir()
    write_package(folder / "torch-float32", other, "torch", weights=digest_model(other))
    packaged = measured("torch", "float32", 1, 9.0, package="torch-float32")
    write_choices(folder, choices_of(small_vit(), packaged, measured("torch", "float32", 1, 3.0)))
    images = images_for(small_vit())

    with caplog.at_level(logging.WARNING):
        (logits,) = start(run).run((images,))

    with torch.inference_mode():
        torch.testing.assert_close(logits, small_vit().model(images), atol=1e-4, rtol=1e-4)
    assert "the export of another model" in caplog.text


def test_what_was_measured_before_stays_where_nothing_newer_says_otherwise(tmp_path: Path) -> None:
    loaded = small_vit()
    kept = [measured("openvino", "float32", 8, 7.0), measured("torch", "float32", 8, 5.0)]
    gone = [measured("torch", "float32", 1, 4.0), measured("compiled", "float32", 8, 9.0)]
    write_choices(tmp_path, choices_of(loaded, *kept, *gone))
    now = choices_of(loaded, measured("torch", "float32", 1, 3.0))

    joined = add_former(tmp_path, now, {("compiled", "float32")})

    assert list(joined.measured) == [*now.measured, *kept]
    other = now.model_copy(update={"threads": 5})
    assert add_former(tmp_path, other, ()) == other
