"""What the commands that answer about files do with ``--output``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.tasks.answer_files import Answers


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
