"""Models of equal size, the data that they are given, and the criterion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.core.errors import ConfigError, DataError
from vitrail.lab.data_hunger import MODELS, DataHunger, HungerRow, _num_parameters, _open


def test_the_models_are_equally_large() -> None:
    configs = DataHunger()._configs(10)

    sizes = {name: _num_parameters(configs[name].build()) for name in MODELS}

    assert all(0.9 < size / sizes["ViT"] < 1.1 for size in sizes.values())


def test_a_resnet_must_lead_with_few_images_and_be_caught_up_with_many() -> None:
    claim = DataHunger()

    assert claim.judge(make_rows(few=0.10, many=0.04)).verdict == "holds"
    assert claim.judge(make_rows(few=0.10, many=0.06)).verdict == "partly"
    assert claim.judge(make_rows(few=0.02, many=-0.10)).verdict == "does not hold"


def test_without_fashion_mnist_digits_are_used_and_other_data_must_be_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("vitrail.tasks.classification.builtin.FASHION_FOLDER", tmp_path)
    monkeypatch.delenv("VITRAIL_DATA", raising=False)

    assert _open("fashion-mnist").source == "digits"
    with pytest.raises(DataError):
        _open("no-such-data")


def test_more_images_than_there_are_are_refused(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for number in range(8):
            picture = np.full((8, 8, 3), 9 * number, dtype=np.uint8)
            Image.fromarray(picture).save(tmp_path / name / f"{number}.png")

    with pytest.raises(DataError, match="training images"):
        DataHunger(data=str(tmp_path), image_size=8).run(lambda progress: None, seed=0)


def test_sizes_must_rise() -> None:
    with pytest.raises(ConfigError, match="must rise"):
        DataHunger().with_changes({"sizes": [50, 20]})


def make_rows(*, few: float, many: float) -> list[HungerRow]:
    """Return rows in which the ResNet leads by so much."""
    leads = {100: few, 1000: many}
    return [
        HungerRow(
            data="any",
            model=name,
            num_images=size,
            seed=seed,
            accuracy=0.6 + (lead if name == "ResNet" else 0.0),
            parameters=11,
        )
        for name in MODELS
        for size, lead in leads.items()
        for seed in (0, 1)
    ]
