"""The user's request of a training: data and explicit settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import Field

from vitrail.core.config import Config, Place, name_setting
from vitrail.core.errors import ConfigError, did_you_mean, refuse
from vitrail.core.registry import Registry
from vitrail.models import MODELS
from vitrail.tasks.contract import ModelRequest, Task
from vitrail.train.run import Choice
from vitrail.train.settings import TrainSettings

Recipe = Callable[[], dict[str, Any]]


def _collect(module: ModuleType) -> Mapping[str, Recipe]:
    table: Mapping[str, Recipe] = getattr(module, "RECIPES", {})
    return table


RECIPES: Registry[Recipe] = Registry("recipe", "vitrail.tasks", _collect, module="recipes")

DEFAULT_OUTPUT = "runs"

_OPTIONS = {"budget_s": "budget", "changes": "set"}  # differ from their fields


class Request(Config):
    """The arguments of ``vitrail.train``, which documents them."""

    source: Place | None = None
    model: str | None = None
    weights: Place | None = None
    budget_s: float | None = Field(None, gt=0)
    recipe: str | None = None
    config: Place | None = None
    changes: Mapping[str, Any] | None = None
    resume: Place | None = None
    output: Place = DEFAULT_OUTPUT
    name: str | None = None
    seed: int | None = None
    dry_run: bool = False
    spent_s: float = 0.0

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Return every requested setting by dotted path; the user's override the recipe's.

        Raises:
            ConfigError: there is no recipe of that name.
        """
        return {**(RECIPES[self.recipe]() if self.recipe else {}), **self._own}

    def choices(self) -> tuple[Choice, ...]:
        """Return the requested settings, each with its origin."""
        reasons = {
            path: "you set it" if path in self._own else f"recipe {self.recipe}" for path in self.settings
        }
        if self.budget_s is not None and "train.steps" in reasons:
            reasons["train.steps"] += ", and the budget is not used: leave out one of the two"
        return tuple(Choice(path, str(value), reasons[path]) for path, value in self.settings.items())

    def check_fresh(self) -> None:
        """Check the request of a new run.

        Raises:
            ConfigError: data is missing, or options exclude each other.
        """
        if self.source is None:
            raise ConfigError(
                "no data was named",
                expected="a folder, a file or a name",
                remedy="Name the data, or a run to resume",
            )
        if self.config is not None:
            needs = "a training without --config, which repeats the settings of a run"
            self._refuse(("model", "weights", "budget_s", "recipe"), needs)

    def check_resumed(self) -> None:
        """Check the request of a resumed run; ``ConfigError`` if a setting of the run would be changed."""
        settled = ["model", "weights", "recipe", "config", "changes", "name", "seed", "dry_run"]
        if Path(self.output) != Path(DEFAULT_OUTPUT):
            settled.append("output")
        self._refuse(settled, "a training without --resume, which goes on with a run and its settings")

    @property
    def _own(self) -> dict[str, Any]:
        weights = None if self.weights is None else str(self.weights)
        given = {"model.name": self.model, "weights": weights, "train.seed": self.seed}
        return {**(self.changes or {}), **{path: value for path, value in given.items() if value is not None}}

    def _refuse(self, fields: Iterable[str], needs: str) -> None:
        refuse({_OPTIONS.get(name, name): getattr(self, name) for name in fields}, needs)


def check_arguments(misnamed: Iterable[str]) -> None:
    """Refuse what ``train`` has no argument for, with the setting's name in Python; ``ConfigError``."""
    for name in misnamed:
        remedy = name_setting(name) or did_you_mean(
            name, Request.model_fields, otherwise="Give settings as in --set train.steps=100"
        )
        in_python = re.sub(r"--set ([\w.]+)=(\w+)", r'changes={"\1": \2}', remedy)
        raise ConfigError(
            f"train has no argument {name!r}",
            expected=", ".join(Request.model_fields),
            remedy=in_python.replace("--budget TIME", "budget_s=SECONDS"),
        )


def read_asked(task: Task, settings: Mapping[str, Any]) -> Any:
    """Return an experiment whose ``is_given`` says which settings were requested, apart from the model's.

    Names and values are checked before any data is read. Dotted paths end here and in ``ModelRequest``: later
    code uses attributes.

    Args:
        settings: by dotted path, such as ``{"train.steps": 100}``; those of the model are left out.

    Raises:
        ConfigError: a name is unknown or a value does not fit.
    """
    fitting = [name for name, config in MODELS.items() if isinstance(config, task.models)]
    asked = ModelRequest(settings)
    if asked.name is not None and not isinstance(MODELS[asked.name], task.models):
        raise ConfigError(
            f"{asked.name} does not learn from {task.contents}",
            expected=f"a model for them, such as {', '.join(fitting[:3])}",
            remedy="Leave --model out, and one is chosen; vitrail models lists all",
        )
    asked.check(fitting if asked.name is None else [asked.name])
    others = {path: value for path, value in settings.items() if not path.startswith("model.")}
    blank = task.experiment(
        data=task.data_settings(""),
        model=MODELS[fitting[0]],
        train=TrainSettings(steps=1, batch_size=1),  # type: ignore[call-arg]
    )
    return blank.only_given(others)
