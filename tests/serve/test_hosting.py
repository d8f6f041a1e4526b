"""How models are loaded: warmed up for what their engine compiles, converted one after the other."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from torch.nn.modules.module import register_module_forward_pre_hook

from making.bright_boxes import bright_detector
from making.served_models import small_classifier, small_models
from vitrail.serve import hosting as module
from vitrail.serve.hosting import Hosting, warm_up
from vitrail.serve.settings import ServeSettings
from vitrail.tasks.classification.served import ServedPredictor
from vitrail.tasks.detection.served import ServedDetector
from vitrail.tasks.serving import EngineChoice, open_servable


@pytest.mark.parametrize(
    ("engine", "max_batch", "sizes"),
    [("torch", 8, [1]), ("compiled", 8, [1, 2, 8]), ("compiled", 2, [1, 2]), ("compiled", 1, [1])],
)
def test_what_is_compiled_by_batch_is_ready_for_every_batch(
    engine: str, max_batch: int, sizes: list[int]
) -> None:
    served: Any = ServedPredictor(small_classifier(), EngineChoice())
    served.predictor.engine.name = engine
    warmed_up: list[int] = []
    served.warm_up = warmed_up.append

    warm_up(served, max_batch)

    assert warmed_up == sizes


@pytest.mark.parametrize("name", list(small_models()))
def test_every_kind_can_be_warmed_up_with_a_batch(name: str) -> None:
    served = open_servable(small_models()[name], EngineChoice())
    seen: list[int] = []
    hook = register_module_forward_pre_hook(lambda _, given: seen.append(len(given[0])) if given else None)

    with hook:
        served.warm_up(3)

    assert 3 in seen or name == "any"  # whose towers are no modules


def test_detectors_are_warmed_up_with_images_of_several_shapes_beside_each_other() -> None:
    loaded = bright_detector()
    served = ServedDetector(loaded, EngineChoice())
    batches: Any = loaded.model.batches
    batches.clear()

    served.warm_up(3)

    assert len(set(batches)) == 3
    assert {shape[0] for shape in batches} == {3}


@pytest.mark.parametrize(("engine", "most_at_once"), [("compiled", 1), (None, 3)])
def test_models_that_are_converted_take_turns(
    monkeypatch: pytest.MonkeyPatch, engine: str | None, most_at_once: int
) -> None:
    lock, now, most = threading.Lock(), 0, 0
    together = threading.Barrier(most_at_once)
    opened = module.open_servable

    def open_and_count(source: Any, choice: Any) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        together.wait(20)
        served = opened(source, EngineChoice())
        with lock:
            now -= 1
        return served

    monkeypatch.setattr(module, "open_servable", open_and_count)
    sources = {name: small_classifier() for name in "abc"}
    hosting = Hosting(sources, ServeSettings(engine=engine))

    hosting.start()
    hosting.wait()
    hosting.close()

    assert hosting.models["a"].error is None
    assert most == most_at_once


def test_closing_waits_for_models_that_are_still_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that loads while the interpreter ends aborts the process (exit code -6)."""
    begun, closing = threading.Event(), threading.Event()

    def open_late(source: Any, choice: Any) -> Any:
        begun.set()
        assert closing.wait(20)
        return open_servable(source, choice)

    monkeypatch.setattr(module, "open_servable", open_late)
    hosting = Hosting({"late": small_classifier()}, ServeSettings())
    hosting.start()
    assert begun.wait(20)
    threading.Timer(0.1, closing.set).start()

    hosting.close()

    late = hosting.models["late"]
    assert late.state == "ready"
    assert late.worker is not None
    assert not late.worker.is_alive
