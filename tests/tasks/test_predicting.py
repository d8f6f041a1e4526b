"""Arguments that all predictors have in common."""

from __future__ import annotations

import pytest
import torch

from vitrail.core.errors import ConfigError
from vitrail.tasks.predicting import check_positive, device_or_default, several, text_of


@pytest.mark.parametrize("number", [0, -1, 2.5, "8", None])
def test_a_count_is_a_positive_whole_number(number: object) -> None:
    check_positive("the batch size", 1)
    with pytest.raises(
        ConfigError, match=f"the batch size is {number!r}. Expected a whole number, 1 or more"
    ):
        check_positive("the batch size", number)


def test_texts_are_several_or_one_and_nothing_else() -> None:
    assert several("a cat") == ["a cat"]
    for texts, message in ((3, "3 is of the type int. Expected text"), (b"a", "b'a' is of the type bytes")):
        with pytest.raises(ConfigError, match=message):
            several(texts)
    assert text_of("a") == "a"
    with pytest.raises(ConfigError, match="None is of the type NoneType"):
        text_of(None)


def test_a_device_is_one_that_torch_knows() -> None:
    assert device_or_default("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"there is no device 'gpu'\. Expected cpu, or cuda"):
        device_or_default("gpu")
