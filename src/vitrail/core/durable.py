"""Files and folders replaced as a whole: a write that fails or is killed leaves the former content.

Writers remove what killed ones left. Readers change nothing on the disk.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, TypeVar

import psutil

from vitrail.core.errors import CheckpointError

try:
    import fcntl
except ImportError:  # not on every system; nothing is locked there
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces ``folder`` when the block succeeds.

    The filled folder is flushed to the disk and renamed to ``.NAME.ready``; then the former folder is
    moved aside, the new one moved in, and the former one removed. The next writer calls ``settle_folder``
    to finish a replacement that was killed between these renames; ``read_folder`` reads in spite of it.

    Raises:
        CheckpointError: the disk is full or not writable; the former folder is as it was.
    """
    with explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        settle_folder(folder)
        staged = _staged(folder)
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
    """Raise ``CheckpointError`` if a folder holds anything but what we wrote, as all of it is removed.

    Args:
        kind: what the folder may hold, such as "an exported model".
        markers: files that such a folder holds, possibly with wildcards.
        example: another folder, for the message.
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
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = _staged(path)
        try:
            write_durably(staged, content)
            staged.replace(path)
            _flush_folder(path.parent)
        except BaseException:
            remove(staged)  # or the next writer does
            raise


def settle_folder(folder: Path) -> None:
    """Finish a replacement of ``folder`` that was killed half-way, and remove its leftovers."""
    ready, former = _ready(folder), folder.with_name(f".{folder.name}.former")
    if ready.exists():
        remove(former)
        if folder.exists():
            folder.rename(former)
        ready.rename(folder)
        _flush_folder(folder.parent)
    remove(former)


def find_folder(folder: Path) -> Path:
    """Return where the content of a folder is: at ``.NAME.ready`` while or until it is moved in."""
    ready = _ready(folder)
    return ready if ready.exists() else folder


def read_folder(folder: Path, read: Callable[[Path], T]) -> T:
    """Return what ``read`` returns of a folder, and read again if the folder was replaced meanwhile."""
    while True:
        place = find_folder(folder)
        before = _identity(place)
        try:
            return read(place)
        except (CheckpointError, OSError):
            if _identity(find_folder(folder)) == before:
                raise


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
    """Turn an OSError inside the block into a ``CheckpointError`` that says what could not be written."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written: {error.strerror}",
            expected="a writable place with enough free space",
            remedy="Free space or choose another folder, then resume or try again; nothing was lost",
        ) from error


@contextmanager
def locked(lock: Path, *, waits: bool = False) -> Iterator[None]:
    """Let one process at a time into such a block; the file, which is there meanwhile, says which.

    The system takes the lock from a process that ends, however it ends, and the next one takes it over.

    Args:
        waits: for the end of the other process; else it is an error.

    Raises:
        CheckpointError: another process is there, or the place is not writable.
    """
    with explained(lock):
        file = _lock(lock, waits)
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        file.close()


def remove(path: Path) -> None:
    """Remove litter; what cannot be removed stays, as it harms nothing."""
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _lock(path: Path, waits: bool) -> IO[str]:
    """Return the locked file, which names this process."""
    while True:
        file = path.open("a+", encoding="utf-8")
        # The lock is the process's, not the file's: workers that outlive it for a moment do not keep it.
        try:
            if fcntl is not None:
                fcntl.lockf(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                with file:
                    file.seek(0)
                    owner = file.read() or "another process"  # which has not written yet
                raise CheckpointError(
                    f"{path.parent} is in use by {owner}",
                    expected="one process at a time that writes there",
                    remedy="Wait for its end, or stop it",
                ) from None
            # else a file system without locks
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            break
        file.close()  # the former owner has removed it meanwhile
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%F %T}")
    file.flush()
    return file


def _identity(path: Path) -> tuple[Path, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return path, found.st_dev, found.st_ino, found.st_ctime_ns


def _staged(path: Path) -> Path:
    """Return where to write what replaces a path, and remove what killed processes left of such writes."""
    mark = f".{path.name}.writing-"
    for abandoned in path.parent.glob(f"{glob.escape(mark)}*"):
        process = abandoned.name.removeprefix(mark)
        if process == str(os.getpid()) or not (process.isdecimal() and psutil.pid_exists(int(process))):
            remove(abandoned)
    return path.with_name(f"{mark}{os.getpid()}")


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
