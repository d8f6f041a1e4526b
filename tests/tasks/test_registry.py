"""Every task names the command that uses its models."""

from __future__ import annotations

from vitrail.cli import app
from vitrail.tasks.registry import TASKS, other_use


def test_a_model_that_does_not_fit_is_sent_to_the_command_that_takes_it() -> None:
    assert {task.usage.split()[1].rstrip(",") for task in TASKS.values()} <= set(app)
    assert "vitrail predict" in other_use({})
    assert "vitrail retrieve" in other_use({"task": "contrastive"})
    assert "another command" in other_use({"task": "of the future"})
