"""Names for plug-ins: adding a file to a plug-in folder is the registration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import TypeVar

from vitrail.errors import ConfigError, did_you_mean

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Map names to entries collected from every module of a package.

    The modules are imported at the first look-up, in alphabetical order, never before: an import of
    ``vitrail`` costs nothing for them.

    Args:
        kind: the singular noun that error messages use, such as ``"model"``.
        package: the dotted name of the plug-in folder.
        collect: returns the entries that one module of the folder provides.
    """

    def __init__(self, kind: str, package: str, collect: Callable[[ModuleType], Mapping[str, T]]) -> None:
        self.kind, self.package, self._collect = kind, package, collect
        self._found: dict[str, T] | None = None

    def __getitem__(self, name: str) -> T:
        """Return the entry of that name.

        Raises:
            ConfigError: no entry has that name; the message offers the nearest ones.
        """
        entries = self._entries()
        if name not in entries:
            raise ConfigError(
                f"there is no {self.kind} named {name!r}",
                expected=f"the name of a {self.kind}",
                remedy=did_you_mean(name, entries),
            )
        return entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    def _entries(self) -> dict[str, T]:
        if self._found is None:
            found: dict[str, T] = {}
            folder = importlib.import_module(self.package)
            for info in sorted(pkgutil.iter_modules(folder.__path__), key=lambda info: info.name):
                entries = self._collect(importlib.import_module(f"{self.package}.{info.name}"))
                twice = found.keys() & entries.keys()
                assert not twice, f"{self.kind} registered twice: {sorted(twice)}"
                found.update(entries)
            self._found = found
        return self._found
