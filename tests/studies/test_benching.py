from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vitrail.core.errors import ConfigError
from vitrail.models.contract import DetectionModelConfig
from vitrail.studies import benching
from vitrail.studies.benching import bench_model, build_named


def test_a_named_model_has_the_same_random_weights_each_time() -> None:
    one, other = build_named("vit_nano"), build_named("vit_nano")

    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)
    assert one.preprocessing["image_size"] == [32, 32]
    assert len(one.class_names) == 10


def test_a_named_detector_is_prepared_as_one() -> None:
    loaded = build_named("sdetr_nano")

    assert isinstance(loaded.model.config, DetectionModelConfig)
    assert loaded.preprocessing["task"] == "detection"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"batches": "1,none"}, "1,8"),
        ({"batches": "0"}, "1,8"),
        ({"engines": "torch,onnx"}, "'onnxruntime'"),
        ({"precisions": "float16"}, "'float32'"),
        ({"size": "large"}, "384x512"),
        ({"source": "transformer_tiny"}, "reads no images"),
    ],
)
def test_wrong_words_and_translators_are_refused(changes: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        bench_model(**{"source": "vit_nano", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("named", "is_kept"), [("vit_nano", False), ("model", True)])
def test_only_what_somebody_may_predict_with_is_kept(
    named: str, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: list[Path | None] = []

    def stop(*_: object, store: Path | None, **__: object) -> None:
        stores.append(store)
        raise KeyboardInterrupt

    monkeypatch.setattr(benching, "bench", stop)
    loaded = build_named("vit_nano")
    loaded.save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(KeyboardInterrupt):
        bench_model(named)

    assert [store is not None for store in stores] == [is_kept]
