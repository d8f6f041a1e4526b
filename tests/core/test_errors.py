"""Errors say what was given, what was expected and what to do."""

from __future__ import annotations

import pytest

from vitrail.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    VitrailError,
    check_name,
    did_you_mean,
    reading,
)


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


class Owned:
    """An object of a class of ours; the module's name says so."""

    __module__ = "vitrail.models.imagined"


def raise_from(module: str, line: str) -> None:
    """Run a line as if it stood in a module."""
    scope = {
        "__name__": module,
        "owned": Owned(),
        "read": ["a list, not an object"],
        "check_name": check_name,
    }
    exec(compile(line, module, "exec"), scope)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("mispelt", NameError),
        ("def read():\n    print(later)\n    later = 1\nread()", UnboundLocalError),
        ("owned.mispelt", AttributeError),
        ("from vitrail.core.config import Config\nConfig().mispelt", AttributeError),
        ("import vitrail.core.errors as module\nmodule.mispelt", AttributeError),
        ("from vitrail.core.errors import mispelt", ImportError),
        ("assert not read", AssertionError),
    ],
)
def test_a_mistake_in_our_own_code_is_not_told_as_a_damaged_file(line: str, kind: type[Exception]) -> None:
    with pytest.raises(kind), reading("a.json", expected="an object", remedy="Restore it"):
        raise_from("vitrail.models.imagined", line)


@pytest.mark.parametrize(
    ("module", "line", "said"),
    [
        ("vitrail.models.imagined", "read.items()", "'list' object has no attribute 'items'"),
        ("vitrail.models.imagined", "read['a']", "list indices must be integers or slices, not str"),
        ("vitrail.models.imagined", "{}['a']", "an entry lacks 'a'"),
        ("vitrail.models.imagined", "open('/no/such')", "No such file or directory"),
        ("parser", "mispelt", "name 'mispelt' is not defined"),
        ("parser", "assert not read", "AssertionError"),
    ],
)
def test_whatever_a_file_makes_a_reader_raise_names_the_file(module: str, line: str, said: str) -> None:
    with pytest.raises(DataError) as caught, reading("a", expected="b", remedy="Do c", error=DataError):
        raise_from(module, line)

    assert str(caught.value) == f"a cannot be read: {said}. Expected b. Do c."


def test_our_own_errors_pass_a_reader_as_they_are() -> None:
    with pytest.raises(ConfigError, match="there is no engine named"), reading("a", expected="b", remedy="c"):
        raise_from("vitrail.models.imagined", "check_name('engine', 'warp', ['torch'])")
