"""The runtime type checker that the import hook of conftest.py puts into every function of the package."""

from typing import Any, Self

from beartype import BeartypeConf, FrozenDict, beartype

typechecked = beartype(
    conf=BeartypeConf(
        # An int may stand where a float is annotated, as mypy has it.
        is_pep484_tower=True,
        # The hook sees functions one by one, so it cannot know the class that Self means.
        hint_overrides=FrozenDict({Self: Any}),
    )
)
