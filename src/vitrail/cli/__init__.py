"""The command ``vitrail``: one short function per command, with imports deferred to its run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from cyclopts import CycloptsError, UnknownCommandError, UnknownOptionError, UnusedCliTokensError

from vitrail.cli import show
from vitrail.cli.app import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_USER_ERROR, app
from vitrail.core.errors import VitrailError

__all__ = ["app", "main"]

COMMANDS = (
    *("bench", "comparing", "drawing", "environment", "explaining", "exporting", "lab"),
    *("models", "predicting", "protocols", "serving", "training"),
)
"""The modules whose import adds commands to the application."""
for name in COMMANDS:
    import_module(f"vitrail.cli.{name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for a user's error, 130 when interrupted."""
    try:
        code = app(
            list(sys.argv[1:] if arguments is None else arguments), print_error=False, exit_on_error=False
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except VitrailError as error:
        return _fail(str(error))
    except CycloptsError as error:
        return _fail(_explain(error))
    except KeyboardInterrupt as interrupt:
        if show.is_first_process():
            print(f"vitrail: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has gone; flushing what Python still buffers must not raise at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:  # of a disk or a connection, at a place that has no better words
        place = error.filename or "a file or a connection"
        return _fail(f"{place} cannot be used: {error.strerror or error}. Check the place, then try again.")


def _explain(error: CycloptsError) -> str:
    if isinstance(error, UnusedCliTokensError):
        unused = " ".join(error.unused_tokens or [])
        advice = "Write --set before every setting, as in --set a=1 --set b=2" if "=" in unused else ""
        return f"unexpected {unused}. {advice or 'See vitrail --help'}"
    if isinstance(error, UnknownCommandError) and (error.unused_tokens or [""])[0] == "doctor":
        return (
            "there is no command doctor. vitrail env describes this installation, vitrail check DATA the data"
        )
    if isinstance(error, UnknownOptionError) and list(error.command_chain or ()) == ["train"]:
        from vitrail.core.config import name_setting

        option = (error.token.keyword or error.token.value).partition("=")[0]
        if remedy := name_setting(option):
            return f"train has no option {option}. {remedy}."
    return str(error)


def _fail(message: str) -> int:
    show.stage(f"error: {message}", indent="")
    return EXIT_USER_ERROR
