"""The application that commands are added to, and what commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter, validators

from vitrail import __version__
from vitrail.core.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.tasks.answer_files import FileResults

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
    """Split comma-separated names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_languages(text: str | None) -> dict[str, list[str]]:
    """Convert ``--languages en,de`` to a setting.

    Raises:
        ConfigError: there are not two languages.
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
    """Parse ``--seeds 3``, a number of seeds, or ``--seeds 1,5,9``, a list.

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


def deliver(results: FileResults, output: Path | None, *, as_json: bool) -> int:
    """Print predictions as a table or as JSON, or write them to a file; return the exit code.

    Args:
        output: its suffix decides the format.
    """
    from vitrail.cli import show as terminal
    from vitrail.tasks.answer_files import write_answers

    if output is not None and results.answers is not None:
        write_answers(output, results.answers)
        terminal.show_errors(results.errors)
        terminal.show_lines([str(output)])
    elif as_json and output is None:
        terminal.show_json(results.tree)
    else:
        terminal.show_results(results)
    return EXIT_SOME_FAILED if results.errors else 0
