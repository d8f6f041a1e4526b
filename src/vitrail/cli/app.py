"""The command's frame: the application that commands are added to, and what they share."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from vitrail import __version__

EXIT_SOME_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_BROKEN_PIPE = 1  # as rich has it

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
