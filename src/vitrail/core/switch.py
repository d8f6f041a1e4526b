"""A process-wide setting that several threads may turn on at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager


class SharedSwitch:
    """Turn a setting on for the first user and off after the last, in whatever order they leave.

    A context manager that restores what it found is right for one thread only. Of two, each restores what the
    other left, and the setting may stay on for ever.

    Args:
        turned_on: makes the context in which the setting is on; another thread may leave it.

    Example:
        >>> from contextlib import closing
        >>> from io import StringIO
        >>> file = StringIO()
        >>> switch = SharedSwitch(lambda: closing(file))
        >>> with switch.on(), switch.on():
        ...     pass
        >>> file.closed
        True
    """

    def __init__(self, turned_on: Callable[[], AbstractContextManager[object]]) -> None:
        self._turned_on, self._held = turned_on, ExitStack()
        self._depth, self._lock = 0, threading.Lock()

    @contextmanager
    def on(self) -> Iterator[None]:
        with self._lock:
            if not self._depth:
                self._held.enter_context(self._turned_on())
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if not self._depth:
                    self._held.close()
