"""Settings are typed, frozen, and changed by dotted names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import model_validator

from vitrail.core.config import Config, check_place, name_setting, parse_assignments
from vitrail.core.errors import ConfigError
from vitrail.tasks.classification.settings import ImageDataSettings


class Inner(Config):
    """A nested part."""

    rate: float = 0.5
    """A rate."""


class Ordered(Config):
    """A part with a rule over two fields."""

    first: int = 2
    """A number."""
    second: int = 5
    """A greater one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.second <= self.first:
            raise ValueError(f"second {self.second} is not above first {self.first}")
        return self


class Outer(Config):
    """A whole."""

    count: int = 3
    """A number."""
    inner: Inner = Inner()
    """A part."""
    pair: tuple[int, int] = (2, 5)
    """Two numbers."""


def test_a_dotted_change_leaves_the_rest_and_the_original() -> None:
    before = Outer()
    after = before.with_changes({"inner.rate": 0.25, "count": 7})
    assert (after.inner.rate, after.count, after.pair) == (0.25, 7, (2, 5))
    assert (before.inner.rate, before.count) == (0.5, 3)


def test_text_is_converted_to_the_type_of_the_field() -> None:
    assert Outer().with_changes({"count": "11"}).count == 11


@pytest.mark.parametrize(
    ("path", "hint"),
    [("inner.rte", "Did you mean 'rate'"), ("cuont", "Did you mean 'count'"), ("count.x", "no fields")],
)
def test_an_unknown_name_says_what_there_is(path: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        Outer().with_changes({path: 1})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lr", "--set optim.learning_rate=VALUE"),
        ("--batch-size", "--set train.batch_size=VALUE"),
        ("image_size", "--set model.image_size=VALUE"),
        ("epochs", "--set train.steps=COUNT"),
        ("device", "a GPU is used where there is one"),
    ],
)
def test_names_of_other_libraries_are_answered_with_ours(name: str, words: str) -> None:
    assert words in str(name_setting(name))
    with pytest.raises(ConfigError, match=words):
        Outer().with_changes({f"inner.{name.strip('-').replace('-', '_')}": 1})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("inner.rate", "fast", "inner.rate must be a number, not 'fast'"),
        ("count", 2.5, "count must be a whole number, not 2.5"),
        ("count", "many", "count must be a whole number, not 'many'"),
        ("pair", [1], "pair.1 is missing, not [1]"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_what_must_be(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Outer().with_changes({path: value})
    assert caught.value.given == message


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Outer.from_tree({"count": "many", "inner": {"rate": "fast"}, "extra": 1})
    assert all(name in str(caught.value) for name in ("count", "inner.rate", "extra"))


def test_a_broken_rule_over_several_fields_is_told_without_all_of_them() -> None:
    with pytest.raises(ConfigError) as caught:
        Ordered().with_changes({"second": 1})
    assert caught.value.given == "second 1 is not above first 2"


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Outer().count = 5


def test_assignments_are_json_where_they_can_be_and_text_else() -> None:
    texts = ["a.b=0.5", "c=[2, 3]", "d=true", "e=adamw", 'f="7"', "g=x=y"]
    changes = parse_assignments(texts)
    assert changes == {"a.b": 0.5, "c": [2, 3], "d": True, "e": "adamw", "f": "7", "g": "x=y"}


@pytest.mark.parametrize("text", ["count", "=3", " =3", ""])
def test_an_assignment_needs_a_name_and_an_equals_sign(text: str) -> None:
    with pytest.raises(ConfigError, match=r"optim\.learning_rate=0\.001"):
        parse_assignments([text])


@given(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.tuples(st.integers(), st.integers())
)
def test_settings_survive_json(count: int, rate: float, pair: tuple[int, int]) -> None:
    settings = Outer(count=count, inner=Inner(rate=rate), pair=pair)
    assert Outer.model_validate_json(settings.model_dump_json()) == settings


@pytest.mark.parametrize("value", [64, "64", "64x64", [64, 64]])
def test_one_number_stands_for_height_and_width(value: Any) -> None:
    settings = ImageDataSettings(source="photos", image_size=(8, 8))
    assert settings.with_changes({"image_size": value}).image_size == (64, 64)


@pytest.mark.parametrize("value", ["64x", "big", 6.5, True])
def test_a_size_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="image_size"):
        ImageDataSettings(source="photos", image_size=(8, 8)).with_changes({"image_size": value})


def test_a_place_is_a_path_or_a_name() -> None:
    assert [check_place(place) for place in ("digits", Path("runs"))] == ["digits", Path("runs")]
    for value, message in ((None, "None is of the type NoneType"), (["a"], "is of the type list")):
        with pytest.raises(ConfigError, match=f"{message}. Expected a path or a name"):
            check_place(value)
