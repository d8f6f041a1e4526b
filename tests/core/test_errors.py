"""Errors say what was given, what was expected and what to do."""

from __future__ import annotations

import pytest

from vitrail.core.errors import CheckpointError, ConfigError, DataError, VitrailError, did_you_mean


@pytest.mark.parametrize("kind", [ConfigError, DataError, CheckpointError])
def test_every_error_is_a_value_error_with_three_parts(kind: type[VitrailError]) -> None:
    error = kind("the folder is empty", expected="an image", remedy="Add one")
    assert isinstance(error, ValueError)
    assert str(error) == "the folder is empty. Expected an image. Add one."


def test_a_near_name_is_offered_and_a_far_one_lists_all() -> None:
    assert did_you_mean("vit_s15", ["vit_s16", "resnet"]) == "Did you mean 'vit_s16'?"
    assert did_you_mean("zzz", ["b", "a"]) == "Choose one of: a, b"


def test_a_part_that_has_its_own_end_gets_no_second_one() -> None:
    inner = DataError("a.png is empty", expected="an image", remedy="Remove it")
    outer = DataError(f"nothing can be read: {inner}", expected="one image", remedy="Did you mean 'b'?")
    assert str(outer).startswith(
        "nothing can be read: a.png is empty. Expected an image. Remove it. Expected one"
    )
    assert str(outer).endswith(" Did you mean 'b'?")
