"""What a user named: a path, or a data set on a hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from vitrail.core.errors import DataError
from vitrail.tasks.classification.opening import HUB_NAME, HUB_PREFIX

R = TypeVar("R")

HUB_FORMAT = "Hugging Face data set"


def locate(
    text: str, *, read: Callable[[Path], tuple[R, str] | None], read_by_name: Callable[[str], R]
) -> tuple[R, str]:
    """Return what was read, and the name of its format.

    A path that exists comes before a name; ``hf:NAME`` says explicitly what is meant.

    Args:
        text: what the user named.
        read: reads a path and returns its format, or returns None where there is nothing at it.
        read_by_name: reads a data set of the hub.

    Raises:
        DataError: there is nothing of that name, or it cannot be read.
    """
    if text.startswith(HUB_PREFIX):
        return read_by_name(text.removeprefix(HUB_PREFIX)), HUB_FORMAT
    try:
        path = Path(text).expanduser()
        found = read(path) if text.strip() else None
        is_hub_name = HUB_NAME.match(text) is not None and not path.parent.exists()
    except DataError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # no permission, no home, a name that is no path
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise DataError(
            f"{text!r} cannot be opened: {reason}",
            expected="a path that exists and may be read",
            remedy="Correct the path or its permissions",
        ) from None
    if found is not None:
        return found
    if is_hub_name and not path.suffix:
        return read_by_name(text), HUB_FORMAT
    raise DataError(
        f"there is no path {text!r}",
        expected="an existing folder or file, or a Hugging Face name (hf:owner/name)",
        remedy=f"Correct the path; the current folder is {Path.cwd()}",
    )
