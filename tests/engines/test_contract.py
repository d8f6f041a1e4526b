from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from making.small_exports import small_vit, write_package
from vitrail.core.errors import ConfigError, DataError
from vitrail.engines import package_engine, torch_engine
from vitrail.engines.contract import ENGINES, PRECISIONS, EngineKind, build_engine, find_kind


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_has_a_kind_of_its_name(name: str) -> None:
    kind = find_kind(name)

    assert isinstance(kind, EngineKind)
    assert kind.name == name
    assert set(kind.precisions) <= set(PRECISIONS)
    assert {each.name for each in (*torch_engine.KINDS, *package_engine.KINDS)} == set(ENGINES)


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"engine": "onnx-runtime"}, ConfigError, "'onnxruntime'"),
        ({"precision": "bfloat"}, ConfigError, "'bfloat16'"),
        ({"engine": "openvino", "device": "cuda"}, ConfigError, "runs on the CPU"),
        ({"engine": "compiled", "precision": "int8"}, ConfigError, "float32, bfloat16"),
        ({"engine": "onnxruntime", "precision": "bfloat16"}, ConfigError, "float32, int8"),
        ({"precision": "int8"}, DataError, "calibration"),
        ({"engine": "onnxruntime", "precision": "int8"}, DataError, "calibration"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(
    asked: dict[str, Any], error: type[ValueError], words: str
) -> None:
    with pytest.raises(error, match=words):
        build_engine(small_vit(), **{"device": "cpu", **asked})


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"engine": "torch"}, "format onnx, not for torch"),
        ({"precision": "float32"}, "in int8, not in float32"),
    ],
)
def test_packages_have_engines_and_precisions_of_their_own(
    asked: dict[str, Any], words: str, tmp_path: Path
) -> None:
    package = write_package(tmp_path, small_vit(), "onnx", precision="int8")

    with pytest.raises(ConfigError, match=words):
        build_engine(package, **asked)
