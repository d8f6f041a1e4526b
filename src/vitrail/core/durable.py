"""Files and folders replaced as a whole: a write that fails or is killed leaves the former content."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitrail.core.errors import CheckpointError


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces ``folder`` when the block succeeds.

    The filled folder is flushed to the disk and renamed to ``.NAME.ready``; then the former folder is
    moved aside, the new one moved in, and the former one removed. ``settle_folder`` finishes a replacement
    that was killed between these renames.

    Raises:
        CheckpointError: the disk is full or not writable; the former folder is as it was.
    """
    staged = folder.with_name(f".{folder.name}.writing-{os.getpid()}")
    with explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        settle_folder(folder)
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
    try:
        with explained(folder):
            yield staged
            _flush_folder(staged)
            staged.rename(_ready(folder))
            _flush_folder(folder.parent)
            settle_folder(folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise


def check_replaceable(folder: Path, kind: str, *, markers: tuple[str, ...], example: str) -> None:
    """Refuse to replace anything but what we wrote, as all of the folder is removed.

    Args:
        kind: what the folder may hold, such as "an exported model".
        markers: files that such a folder holds, possibly with wildcards.
        example: another folder, for the message.

    Raises:
        CheckpointError: the folder holds something else.
    """
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_free and not all(any(folder.glob(marker)) for marker in markers):
        raise CheckpointError(
            f"{folder} exists and is not {kind}",
            expected=f"a folder that does not exist yet, is empty, or holds {kind}",
            remedy=f"Name another folder, such as {example}",
        )


def atomic_write(path: Path, content: bytes | str) -> None:
    """Replace a file atomically; text is written as UTF-8.

    Raises:
        CheckpointError: the disk is full or not writable; the former file is as it was.
    """
    staged = path.with_name(f".{path.name}.writing-{os.getpid()}")
    with explained(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(staged, content)
            staged.replace(path)
            _flush_folder(path.parent)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise


def settle_folder(folder: Path) -> None:
    """Finish a replacement of ``folder`` that was killed half-way, and remove its leftovers."""
    ready = _ready(folder)
    if ready.exists():
        former = folder.with_name(f".{folder.name}.former")
        shutil.rmtree(former, ignore_errors=True)
        if folder.exists():
            folder.rename(former)
        ready.rename(folder)
        _flush_folder(folder.parent)
        shutil.rmtree(former, ignore_errors=True)


def write_durably(path: Path, content: bytes | str) -> None:
    r"""Write a file and wait until it is on the disk.

    What UTF-8 cannot hold, such as the bytes of a file's name that is not UTF-8, is written as ``\udcff``,
    which JSON reads as it was.
    """
    with path.open("wb") as file:
        file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into an error that says what could not be written.

    Raises:
        CheckpointError: the disk is full or not writable.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written: {error.strerror}",
            expected="a writable place with enough free space",
            remedy="Free space or choose another folder, then resume or try again; nothing was lost",
        ) from error


def _ready(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.ready")


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":  # other systems cannot open a folder; their renames are durable enough
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
