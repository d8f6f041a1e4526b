from __future__ import annotations

import pytest

from making.deploy_models import small_vit
from vitrail.core.errors import ConfigError
from vitrail.engines.building import MODULES, build_engine, find_kind
from vitrail.engines.contract import ENGINES, PRECISIONS, EngineKind


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_has_a_kind_of_its_name(name: str) -> None:
    kind = find_kind(name)

    assert isinstance(kind, EngineKind)
    assert kind.name == name
    assert set(kind.precisions) <= set(PRECISIONS)
    assert set(MODULES) == set(ENGINES)


def test_an_unknown_engine_or_precision_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'onnxruntime'"):
        build_engine(small_vit(), engine="onnx-runtime")
    with pytest.raises(ConfigError, match="'bfloat16'"):
        build_engine(small_vit(), precision="bfloat")


def test_other_devices_are_for_torch_alone() -> None:
    with pytest.raises(ConfigError, match="runs on the CPU"):
        build_engine(small_vit(), engine="openvino", device="cuda")
