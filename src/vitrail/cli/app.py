"""The application that commands are added to, and what commands share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, validators

from vitrail import __version__
from vitrail.core.errors import ConfigError, reading

EXIT_SOME_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_BROKEN_PIPE = 1  # as rich has it


def finite(_: Any, value: Any) -> None:
    """Refuse NaN and infinite numbers, which pass most comparisons."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("Must be a finite number.")


Count = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Share = Annotated[float, Parameter(validator=(validators.Number(gte=0, lte=1), finite))]
Flag = Annotated[bool, Parameter(show_default=False)]
Output = Annotated[Path | None, Parameter(name=["--output", "-o"])]
Page = Annotated[Path, Parameter(name=["--output", "-o"])]
Texts = Annotated[tuple[str, ...], Parameter(show_default=False)]
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
    default_parameter=Parameter(negative="", validator=finite),
)


def split_names(text: str) -> list[str]:
    """Split comma-separated names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def data_settings(
    languages: str | None = None, image_column: str | None = None, label_column: str | None = None
) -> dict[str, Any]:
    """Return the settings of data that have options; ``ConfigError`` if --languages does not give two."""
    given = {"data.image_column": image_column, "data.label_column": label_column}
    settings: dict[str, Any] = {path: name for path, name in given.items() if name is not None}
    if languages is None:
        return settings
    names = split_names(languages if "," in languages else languages.replace("-", ","))
    if len(names) != 2:
        raise ConfigError(
            f"--languages was given {languages!r}",
            expected="two codes with a comma between them, the source first",
            remedy="Write them as in --languages en,de",
        )
    return settings | {"data.languages": names}


def parse_numbers(option: str, text: str) -> list[int]:
    """Parse comma-separated whole numbers, such as those of ``--severities 1,3,5``; else ``ConfigError``."""
    try:
        return [int(name) for name in split_names(text)]
    except ValueError:
        raise ConfigError(
            f"{option} was given {text!r}",
            expected="whole numbers with commas between them",
            remedy=f"Write them as in {option} 1,3,5",
        ) from None


def read_names(names: str | None, file: Path | None) -> list[str]:
    """Return comma-separated class names, or those of a file with one per line; one must be given."""
    if (names is None) == (file is None):
        raise ConfigError(
            "neither --names nor --names-file was given" if names is None else "both were given: names twice",
            expected="the names of the classes, once",
            remedy="Write them as in --names apple,pear, or one on each line of a file",
        )
    if names is not None:
        return names.split(",")
    assert file is not None
    expected, remedy = "a text file in UTF-8 with one name on each line", "Correct the path, or use --names"
    with reading(file, expected=expected, remedy=remedy, error=ConfigError):
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
