"""A model that does not fit is sent to the command that takes it."""

from __future__ import annotations

from vitrail.cli import app
from vitrail.tasks.other_use import USES, other_use
from vitrail.tasks.registry import TASKS


def test_every_kind_of_model_has_a_command_that_there_is() -> None:
    assert set(USES) == set(TASKS)
    commands = {use.split()[1].rstrip(",") for use in USES.values()}
    assert commands <= set(app)


def test_a_model_without_a_kind_is_one_of_images() -> None:
    assert "vitrail predict" in other_use({})
    assert "vitrail retrieve" in other_use({"task": "contrastive"})
    assert "another command" in other_use({"task": "of the future"})
