"""What a user names on the command line, as a list of files."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from vitrail.errors import DataError

IMAGE_SUFFIXES = frozenset(
    (
        ".jpg",
        ".jpeg",
        ".png",
        ".bmp",
        ".gif",
        ".webp",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".pbm",
        ".avif",
        ".jp2",
    )
)


def list_files(names: Iterable[str | Path]) -> list[Path]:
    """Expand folders and glob patterns; a plain file name stays as it is, whether it exists or not.

    A folder stands for the images in it and in its folders, by name; hidden files are left out. A missing
    file stays in the list, so that it is reported among the predictions instead of stopping them.

    Raises:
        DataError: a folder or a pattern holds no image, or no name was given.
    """
    files: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            found = sorted(
                file
                for file in path.rglob("*")
                if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".") and file.is_file()
            )
        elif glob.has_magic(str(name)) and not path.exists():
            found = sorted(
                Path(match) for match in glob.glob(str(name), recursive=True) if Path(match).is_file()
            )
        else:
            found = [path]
        if not found:
            raise DataError(
                f"{name} holds no image",
                expected="a folder or a pattern with image files, such as photos/ or 'photos/*.jpg'",
                remedy="Correct the path, or name the files one by one",
            )
        files.extend(found)
    if not files:
        raise DataError("no image was named", expected="one or more files", remedy="Name a file or a folder")
    return files
