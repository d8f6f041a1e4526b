from __future__ import annotations

import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.models.detection_contract import DetectionModelConfig
from vitrail.pipeline.benching import bench_model, build_named


def test_a_named_model_has_the_same_random_weights_each_time() -> None:
    one, other = build_named("vit_nano"), build_named("vit_nano")

    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)
    assert one.preprocessing["image_size"] == [32, 32]
    assert len(one.class_names) == 10


def test_a_named_detector_is_prepared_as_one() -> None:
    loaded = build_named("sdetr_nano")

    assert isinstance(loaded.model.config, DetectionModelConfig)
    assert loaded.preprocessing["kind"] == "boxes"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"batches": "1,none"}, "1,8"),
        ({"batches": "0"}, "1,8"),
        ({"engines": "torch,onnx"}, "'onnxruntime'"),
        ({"precisions": "float16"}, "'float32'"),
        ({"size": "large"}, "384x512"),
    ],
)
def test_wrong_words_are_refused(changes: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        bench_model("vit_nano", **changes)  # type: ignore[arg-type]


def test_translators_are_refused() -> None:
    with pytest.raises(ConfigError, match="reads no images"):
        bench_model("transformer_tiny")
