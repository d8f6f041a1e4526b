"""Find the files of a data set: splits by name, images by their name in annotations and tables."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from vitrail.core.errors import DataError
from vitrail.core.files import expand, open_file, read_file
from vitrail.data.splits import SPLIT_NAMES, SplitName

RAW_SUFFIXES = frozenset({".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"})  # of cameras
IMAGE_SUFFIXES = RAW_SUFFIXES | frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp"}
    | {".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".avif"}
    | {".heic", ".heif", ".hif"}
)
DATA_VARIABLE = "VITRAIL_DATA"  # names the folder above data sets and pictures
PEEK = 65536  # bytes of each end of a file that a cheap look reads
LOOKED_AT = 1000  # entries of a folder that a cheap look reads at most


def is_image_name(name: str) -> bool:
    """Tell by its suffix whether a file is an image."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def split_folders(root: Path) -> dict[SplitName, Path]:
    """Return the subfolders named exactly like a split; the first of each by name."""
    found: dict[SplitName, Path] = {}
    for folder in folders_in(root):
        split = SPLIT_NAMES.get(folder.name.lower().removesuffix("2017").removesuffix("2014"))
        if split is not None:
            found.setdefault(split, folder)
    return found


def folders_in(folder: Path) -> list[Path]:
    """List the visible subfolders by name, without a look at every file."""
    with os.scandir(folder) as entries:
        return sorted(Path(each.path) for each in entries if is_shown(each.name) and is_folder(each.path))


def is_folder(path: str | Path) -> bool:
    """Tell whether a path is a folder, and no link to one that it lies in: to ``/``, to all of the disk."""
    if not os.path.islink(path):
        return os.path.isdir(path)
    above, here = os.path.realpath(path), os.path.realpath(os.path.dirname(path))
    return os.path.isdir(path) and not Path(here).is_relative_to(above)


def first_entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return some entries of a folder for a cheap look; empty if it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return [entry for _, entry in zip(range(LOOKED_AT), entries, strict=False)]
    except OSError:
        return []


def both_ends(path: Path) -> bytes:
    """Return both ends of a JSON object's file, for a cheap look; empty for any other file."""
    try:
        with open_file(path) as file:
            start = file.read(PEEK)
            file.seek(max(path.stat().st_size - PEEK, 0))
            ends = plain_bytes(start) + plain_bytes(file.read(PEEK))
    except OSError:
        return b""
    return ends if ends.lstrip().startswith(b"{") else b""


def start_of(path: Path, size: int = PEEK) -> bytes:
    """Return the plain beginning of a file for a cheap look; empty if it cannot be read."""
    with suppress(OSError):
        return plain_bytes(read_file(path, size))
    return b""


def plain_bytes(text: bytes) -> bytes:
    """Return encoded text for a cheap look: without a byte order mark, and without UTF-16's zero bytes."""
    return text.lstrip(b"\xef\xbb\xbf\xff\xfe").replace(b"\0", b"")


def looks_like_coco(path: Path) -> bool:
    """Tell from both ends of a file whether it holds images with annotations, complete or not."""
    ends = both_ends(path)
    return b'"images"' in ends and (b'"annotations"' in ends or b'"categories"' in ends)


def nested(path: Path) -> Iterator[Path]:
    """Yield a folder and single folders nested in it, as unpacked archives have them."""
    yield path
    for _ in range(3):
        folders = folders_in(path)
        if len(folders) != 1:
            return
        path = folders[0]
        yield path


def list_images(folder: Path) -> list[Path]:
    """List the images of a folder and its subfolders by name, without hidden ones."""
    return [path for path in walk(folder) if is_image_name(path.name)]


def walk(folder: Path) -> Iterator[Path]:
    """Yield the visible files of a folder by name, then those of its subfolders.

    Raises:
        DataError: a folder cannot be listed; without it, data would lack a class.
    """
    seen: set[tuple[int, int]] = set()  # links are followed, each folder is entered once
    for place, folders, files in os.walk(folder, followlinks=True, onerror=_refuse_unlisted):
        try:
            status = os.stat(place)
        except OSError as error:
            _refuse_unlisted(error)
            folders.clear()
            continue
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(
            name for name in folders if is_shown(name) and is_folder(os.path.join(place, name))
        )
        yield from (Path(place, name) for name in sorted(files) if is_shown(name))


def _refuse_unlisted(error: OSError) -> None:
    if not isinstance(error, NotADirectoryError | FileNotFoundError):
        raise DataError(
            f"the folder {error.filename} cannot be listed: {error.strerror}",
            expected="folders that may be read",
            remedy="Change its permissions, or move it out of the data",
        ) from None


def relative_name(path: Path, root: Path) -> str:
    """Return a file's name: its path inside the data set, with forward slashes."""
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return Path(os.path.relpath(path, root)).as_posix()


def find_by_ends(names: Sequence[str], folder: Path) -> list[Path | None]:
    """Find images in a folder by the ends of their paths, in any case, with or without suffix.

    None where several images fit equally well, or none does, or where one fits several names.
    """
    by_end: dict[str, list[Path]] = {}
    for image in list_images(folder):
        path = _plain(relative_name(image, folder))
        for form in (path, os.path.splitext(path)[0]):
            for end in _ends(form):
                by_end.setdefault(end, []).append(image)
    fitting = {
        name: next((by_end[end] for end in _ends(_plain(name)) if end in by_end), []) for name in names
    }
    found = {name: files[0] for name, files in fitting.items() if len(files) == 1}
    num_names = Counter(found.values())
    return [found[name] if name in found and num_names[found[name]] == 1 else None for name in names]


def _plain(path: str) -> str:
    return unicodedata.normalize("NFC", path.strip().replace("\\", "/").lower())


def _ends(path: str) -> list[str]:
    """Return the ends of a path, the longest first."""
    parts = path.split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]


def data_folders(*names: str) -> list[Path]:
    """Return the folders of these names below ``VITRAIL_DATA``; none if it is not set."""
    named = os.environ.get(DATA_VARIABLE)
    return [expand(named) / name for name in names] if named else []


def lies_in(path: Path, folders: Iterable[Path]) -> bool:
    """Tell by its name whether a path lies in one of some folders, or in that of ``VITRAIL_DATA``.

    Links in them are the doing of whoever let them in.
    """
    allowed = (os.path.abspath(folder) for folder in (*folders, *data_folders(".")))
    return any(Path(os.path.abspath(path)).is_relative_to(folder) for folder in allowed)


class ImageFinder:
    """Find the images that annotations name, in any of some folders, the likeliest first.

    The folders are listed once each, which is faster than testing for every file. A name with ``..`` and an
    absolute one lead to files in these folders alone: annotations may be a stranger's.

    Args:
        bounds: further folders that such names may lead to.
    """

    def __init__(self, folders: Iterable[Path], bounds: Sequence[Path] = ()) -> None:
        self._folders, self._bounds = list(dict.fromkeys(folders)), bounds
        self._listed: dict[Path, frozenset[str]] = {}
        self._stems: dict[Path, dict[str, str]] = {}
        self.found: set[Path] = set()

    def find(self, name: str) -> Path | None:
        """Return the file of that name, or None.

        A name is a path relative to one of the folders; failing that, its last part alone is searched. The
        folder of the last image comes first.
        """
        relative = PurePosixPath(name.replace("\\", "/"))
        if not relative.name or relative.name == "..":
            return None
        for wanted in map(PurePosixPath, (*forms_of(str(relative)), *forms_of(relative.name))):
            for folder in self._folders:
                path = folder / wanted
                if wanted.is_absolute() or ".." in wanted.parts:
                    path = Path(os.path.normpath(path))  # what is checked is what is opened, links or not
                    if not lies_in(path, (*self._folders, *self._bounds)):
                        continue
                if path.name in self._names(path.parent):
                    return self._settle(folder, path)
        return None

    def find_stem(self, stem: str) -> Path | None:
        for folder in self._folders:
            if folder not in self._stems:
                images = sorted(filter(is_image_name, self._names(folder)), reverse=True)
                self._stems[folder] = {os.path.splitext(image)[0]: image for image in images}
            for form in forms_of(stem):
                if form in self._stems[folder]:
                    return self._settle(folder, folder / self._stems[folder][form])
        return None

    def unlisted(self) -> list[Path]:
        """Return the images that were not asked for, in folders in which others were found."""
        folders = sorted({path.parent for path in self.found})
        images = [folder / name for folder in folders for name in self._names(folder) if is_image_name(name)]
        return sorted(path for path in images if path not in self.found)

    def _settle(self, folder: Path, path: Path) -> Path:
        if self._folders[0] != folder:
            self._folders.remove(folder)
            self._folders.insert(0, folder)
        self.found.add(path)
        return path

    def _names(self, folder: Path) -> frozenset[str]:
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(
                    entry.name for entry in os.scandir(folder) if not entry.name.startswith(".")
                )
            except (OSError, ValueError):  # no folder, or an impossible name
                self._listed[folder] = frozenset()
        return self._listed[folder]


def forms_of(name: str) -> list[str]:
    """Return a name as written, and with its accents composed and taken apart, as macOS has them."""
    return [*dict.fromkeys((name, *(unicodedata.normalize(form, name) for form in ("NFC", "NFD"))))]


def is_shown(name: str) -> bool:
    """Tell whether a file or folder is neither hidden nor left by an archiver."""
    return not name.startswith((".", "__MACOSX"))


def existing(folders: Sequence[Path]) -> list[Path]:
    """Return those that are folders, without duplicates."""
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]
