"""JSON files with a digest of themselves, so that damage and changes are noticed when they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.core.durable import atomic_write
from vitrail.core.errors import CheckpointError, VitrailError, reading
from vitrail.core.files import parse_json, read_file

DIGEST = "digest"
"""The first field of such a file. Without it, as in older files, nothing is verified."""


def sealed(tree: Mapping[str, Any]) -> str:
    """Return an object as JSON text, with its digest as the first field.

    >>> print(sealed({"step": 9}), end="")
    {
      "digest": "59ac19bdfe93cb3de4579ab1f686ecdf",
      "step": 9
    }
    """
    return json.dumps({DIGEST: _digest(tree), **tree}, indent=2, ensure_ascii=False) + "\n"


def write_sealed(path: Path, tree: Mapping[str, Any]) -> None:
    """Replace a file by ``sealed`` text; errors are those of ``atomic_write``."""
    atomic_write(path, sealed(tree))


def read_sealed(
    path: Path,
    *,
    expected: str = "a JSON object as it was written",
    remedy: str = "Restore the file",
    error: type[VitrailError] = CheckpointError,
    is_verified: bool = True,
    list_field: str | None = None,
) -> dict[str, Any]:
    """Read what ``sealed`` made, without its digest.

    Args:
        expected: completes "Expected ...", where it cannot be read.
        is_verified: whether a change is an error.
        list_field: field that takes a list, which older files hold instead of an object.

    Raises:
        error: the file is missing, not a JSON object, or was changed.
    """
    with reading(path, expected=expected, remedy=remedy, error=error):
        tree = parse_json(read_file(path).decode())
    if list_field is not None and isinstance(tree, list):
        tree = {list_field: tree}
    if not isinstance(tree, dict):
        raise error(f"{path} holds a {type(tree).__name__}, not an object", expected=expected, remedy=remedy)
    digest = tree.pop(DIGEST, None)
    if is_verified and digest is not None and digest != _digest(tree):
        raise error(
            f"{path} was damaged or changed: its content does not match its digest",
            expected="the file as it was written",
            remedy=f'Restore it, or remove its line "{DIGEST}" if you changed the file on purpose',
        )
    return tree


def _digest(tree: Mapping[str, Any]) -> str:
    """Return a digest of the values as they are read, whatever their order and the space between them."""
    content = json.dumps(json.loads(json.dumps(tree)), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]
