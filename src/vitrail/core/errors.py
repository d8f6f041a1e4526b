"""Errors a user can fix: each says what was given, what was expected and what to do.

All are ``ValueError``; the command line prints their text without a traceback and exits with code 2.
Violations of our own invariants are plain ``assert`` and show a traceback.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from traceback import walk_tb
from typing import Any

_MOST_LISTED = 10  # names in a message


class VitrailError(ValueError):
    """Say what is wrong and how to fix it.

    Args:
        given: a sentence without its full stop: ``"the folder photos/ holds no image"``.
        expected: completes "Expected ...".
        remedy: an imperative sentence without its full stop.
    """

    def __init__(self, given: str, *, expected: str, remedy: str) -> None:
        self.given, self.expected, self.remedy = given, expected, remedy
        super().__init__(f"{_end(given)} Expected {_end(expected)} {_end(remedy)}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle, for another process to raise it, by the arguments instead of the text made of them."""
        return partial(type(self), expected=self.expected, remedy=self.remedy), (self.given,)


class ConfigError(VitrailError):
    """A setting, a name or a command-line value is wrong."""


class DataError(VitrailError):
    """A data set, or a file of it, cannot be used."""


class CheckpointError(VitrailError):
    """A checkpoint or a run directory is missing, damaged or of another model."""


@contextmanager
def reading(
    source: object,
    *,
    expected: str,
    remedy: str,
    error: type[VitrailError] = CheckpointError,
    done: str = "read",
) -> Iterator[None]:
    """Turn whatever a damaged file makes its reader raise into an error that names the file.

    Parsers and unpicklers raise nearly anything. Our own errors, and mistakes in our own code, are passed on.

    Args:
        done: what cannot be done with it.
    """
    try:
        yield
    except VitrailError:
        raise
    except Exception as fault:
        if _is_mistake(fault):
            raise
        given = f"{source} cannot be {done}: {reason_of(fault)}"
        raise error(given, expected=expected, remedy=remedy) from fault


def reason_of(fault: Exception) -> str:
    """Return in a few words why something cannot be read."""
    if isinstance(fault, UnicodeDecodeError):
        return f"byte {fault.start} is not {fault.encoding.upper()} text"
    if isinstance(fault, KeyError):
        is_name = isinstance(fault.args[0] if fault.args else "", str)
        return f"an entry lacks {fault}" if is_name else f"it refers to {fault}, which it does not hold"
    if isinstance(fault, EOFError):
        return "it ends too early"
    return getattr(fault, "strerror", None) or one_line(fault).rstrip(".")


def _is_mistake(fault: Exception) -> bool:
    """Return whether our own code raised what no file can make it raise, as a misspelt name does."""
    if isinstance(fault, AttributeError):  # not of a list where a file should have an object
        home = getattr(fault.obj, "__module__", None) or getattr(fault.obj, "__name__", None)
        return str(home).startswith("vitrail.")
    *_, (frame, _) = walk_tb(fault.__traceback__)
    is_ours = str(frame.f_globals.get("__name__")).startswith("vitrail.")
    return is_ours and isinstance(fault, AssertionError | ImportError | NameError)


def missing_package(
    needed: str, package: str, extra: str, error: type[VitrailError] = ConfigError
) -> VitrailError:
    """Return the error for an optional package.

    Args:
        needed: beginning of the message, such as "these scores need".
        extra: of vitrail, which installs the package.
    """
    return error(
        f"{needed} the package {package}, which is not installed",
        expected=f"{package} beside vitrail",
        remedy=f"Install it with: pip install 'vitrail[{extra}]'",
    )


def import_optional(
    module: str, needed: str, package: str, extra: str, error: type[VitrailError] = ConfigError
) -> Any:
    """Return a module of an optional package, or raise the error for one that is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise missing_package(needed, package, extra, error) from None


def did_you_mean(
    name: str, known: Iterable[str], others: Mapping[str, str] | None = None, *, otherwise: str | None = None
) -> str:
    """Return a remedy sentence with the known names that resemble the given one.

    Args:
        others: known names by what other libraries call them, with or without an owner and a tag.
        otherwise: the sentence where none does (default: all names).
    """
    known = sorted(known)
    plain = _plain if others else str
    names = {plain(other): own for other, own in (*(others or {}).items(), *zip(known, known, strict=True))}
    asked = plain(name)
    begin = sorted((each for each in names if each.startswith(asked)), key=len)
    close = [asked] if asked in names else begin or difflib.get_close_matches(asked, names, n=6, cutoff=0.5)
    nearest = list(dict.fromkeys(names[each] for each in close))[:3]
    if nearest:
        return "Did you mean " + " or ".join(repr(match) for match in nearest) + "?"
    if others and "/" in name:
        return f"Give --weights hf:{name} for a published model"
    return otherwise or "Choose one of: " + ", ".join(known)


def check_name(
    kind: str, name: str, known: Collection[str], others: Callable[[], Mapping[str, str]] = dict
) -> None:
    """Raise ``ConfigError``, with the nearest names as its remedy, unless there is something of a name.

    Args:
        kind: singular noun, such as "engine".
        others: returns names by what other libraries call them.
    """
    if name not in known:
        raise ConfigError(
            f"there is no {kind} named {name!r}",
            expected=f"the name of a {kind}" if len(known) > _MOST_LISTED else f"one of {', '.join(known)}",
            remedy=did_you_mean(name, known, others()),
        )


def refuse(given: Mapping[str, object], needs: str, remedy: str = "Leave it out") -> None:
    """Raise ``ConfigError`` if options were given, which need what is not there.

    Args:
        given: values by field, as of ``class_name`` for --class; None, False and empty ones are not given.
        needs: completes "--option requires".
    """
    names = [
        f"--{name.removesuffix('_name').replace('_', '-')}"
        for name, value in given.items()
        if not (value is None or value is False or value in ((), {}))
    ]
    if names:
        options, verb = " and ".join(names), "requires" if len(names) == 1 else "require"
        raise ConfigError(f"{options} {verb} {needs}", expected=f"no {options} otherwise", remedy=remedy)


def _plain(name: str) -> str:
    """Return ``vit_base_patch16_224`` of ``google/vit-base-patch16-224`` and ``timm:...224.augreg_in1k``."""
    return re.sub(r"\W", "_", re.sub(r"^.*[:/](?=.{5})|\.[a-z].*$", "", name.lower()))


def one_line(error: object) -> str:
    """Return an error's text, or its type, on one line of at most 200 characters."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type, without a full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(" .")


def _end(sentence: str) -> str:
    """Add a full stop, unless the sentence ends otherwise, as a question or a quoted error does."""
    return sentence if sentence.endswith((".", "?")) else f"{sentence}."
