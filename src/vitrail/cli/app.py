"""The command's frame: the application that commands are added to, and what they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter, validators

from vitrail import __version__
from vitrail.core.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.tasks.answer_files import Answers

EXIT_SOME_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_BROKEN_PIPE = 1  # as rich has it

Count = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Share = Annotated[float, Parameter(validator=validators.Number(gte=0, lte=1))]
Flag = Annotated[bool, Parameter(show_default=False)]
Settings = Annotated[tuple[str, ...], Parameter(name="--set", show_default=False)]

app = App(
    name="vitrail",
    help="Train, test, explain and use attention models on your own images and texts.",
    help_epilogue="Example: vitrail train photos/ --budget 10m",
    help_format="plaintext",
    help_flags=["--help", "-h"],
    version=f"vitrail {__version__}",
    suppress_keyboard_interrupt=False,
    result_action="return_value",
    default_parameter=Parameter(negative=""),
)


def split_names(text: str) -> list[str]:
    """Return the names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_languages(text: str | None) -> dict[str, list[str]]:
    """Return the setting that ``--languages en,de`` stands for.

    Raises:
        ConfigError: there are not two of them.
    """
    if text is None:
        return {}
    names = split_names(text if "," in text else text.replace("-", ","))
    if len(names) != 2:
        raise ConfigError(
            f"--languages was given {text!r}",
            expected="two codes with a comma between them, the source first",
            remedy="Write them as in --languages en,de",
        )
    return {"data.languages": names}


def parse_seeds(text: str) -> int | list[int]:
    """Return how many seeds ``--seeds 3`` asks for, or which ones ``--seeds 1,5,9`` does.

    Raises:
        ConfigError: it is neither.
    """
    try:
        return [int(name) for name in split_names(text)] if "," in text else int(text)
    except ValueError:
        raise ConfigError(
            f"--seeds was given {text!r}",
            expected="a number of seeds such as 3, or seeds with commas between them such as 1,5,9",
            remedy="Write them without spaces",
        ) from None


def write_file(output: Path, answers: Answers, errors: Iterable[tuple[str, str]]) -> None:
    """Write answers into a file, show its name, and tell which inputs could not be used.

    Args:
        output: its suffix says the form.
        answers: what is written.
        errors: the name of each input that could not be used, and why.
    """
    from vitrail.cli import show as terminal
    from vitrail.tasks.answer_files import write_answers

    write_answers(output, answers)
    terminal.show_errors(errors)
    terminal.show_lines([str(output)])


def refuse_options(options: Mapping[str, object], *, needs: str) -> None:
    """Refuse options that would have no effect.

    Args:
        options: the value of each, None or empty where it was not given.
        needs: what they need, such as "a file to explain".

    Raises:
        ConfigError: one was given.
    """
    given = [name for name, value in options.items() if value not in (None, ())]
    if given:
        raise ConfigError(
            f"{' and '.join(given)} {'requires' if len(given) == 1 else 'require'} {needs}",
            expected=needs,
            remedy=f"Leave {' and '.join(given)} out, or see vitrail explain --help",
        )


def only_detectors(option: str, run: Path) -> ConfigError:
    """Return why an option of detectors was refused."""
    return ConfigError(
        f"{option} was given, and {run} is no detector",
        expected="a run that was trained on images with boxes",
        remedy=f"Leave {option} out",
    )
