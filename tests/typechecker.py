"""The runtime checks that the import hook of conftest.py puts into every function of the package.

As jaxtyping does it, a function gets two checkers where it is defined, whether it is called or not, and every
call checks the arguments twice: a quarter of the suite's time. Here a checker is made at the first call, and
knows about shapes only if the function does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Self, get_args

import jaxtyping
from beartype import BeartypeConf, FrozenDict, beartype

typechecked = beartype(
    conf=BeartypeConf(
        # An int may stand where a float is annotated, as mypy has it.
        is_pep484_tower=True,
        # The hook sees functions one by one, so it cannot know the class that Self means.
        hint_overrides=FrozenDict({Self: Any}),
    )
)
_jaxtyped = jaxtyping.jaxtyped


def install() -> None:
    """Check shapes and types of every call; the package must not be imported before this."""
    jaxtyping.jaxtyped = _checked  # what the hook puts before every function and class
    jaxtyping.install_import_hook("vitrail", "typechecker.typechecked")


def _checked(*, typechecker: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda target: (
        _checked_function(target)
        if inspect.isfunction(target)
        else _jaxtyped(target, typechecker=typechecker)
    )


def _checked_function(function: Callable[..., Any]) -> Callable[..., Any]:
    # Now, as a test may replace a class by another before the first call.
    hints = {name: _resolve(hint, function.__globals__) for name, hint in function.__annotations__.items()}
    checked: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        if checked is None:
            function.__annotations__ = hints
            checked = typechecked(function)
            if any(map(_has_arrays, hints.values())):
                checked = _jaxtyped(checked, typechecker=None)
        return checked(*args, **kwargs)

    return call


def _resolve(hint: Any, namespace: dict[str, Any]) -> Any:
    """Return what an annotation means, or Any if a name in it is not known yet or to type checkers only."""
    try:
        return eval(hint, namespace) if isinstance(hint, str) else hint
    except Exception:  # whatever evaluating a text raises
        return Any


def _has_arrays(hint: Any) -> bool:
    is_array = inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)
    return is_array or any(map(_has_arrays, get_args(hint)))
