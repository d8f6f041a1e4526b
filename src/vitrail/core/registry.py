"""Registries of plug-ins: adding a file to a plug-in folder is the registration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.util import find_spec
from types import ModuleType
from typing import TypeVar

from vitrail.core.errors import check_name

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Map names to entries collected from every module of a package.

    Modules are imported when needed, so ``import vitrail`` stays cheap: for one name, those that it begins
    with; for any other question, all in alphabetical order.

    Args:
        kind: singular noun for error messages, such as ``"model"``.
        package: dotted name of the plug-in folder.
        collect: returns the entries of one module.
        module: the module to ask in each plug-in folder; None where plug-ins are files.
        others: returns names by what other libraries call them, for the error about an unknown name.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        collect: Callable[[ModuleType], Mapping[str, T]],
        *,
        module: str | None = None,
        others: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.kind, self.package, self._collect, self._module = kind, package, collect, module
        self._others = others
        self._asked: dict[str, Mapping[str, T]] = {}  # entries by module

    def __getitem__(self, name: str) -> T:
        """Return an entry; an unknown name raises ConfigError, with the nearest names as its remedy."""
        name = str(name)
        for module in self._modules:
            if name.startswith(module.partition(".")[0]) and name in (entries := self._ask(module)):
                return entries[name]
        check_name(self.kind, name, self._entries, self._others)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @cached_property
    def _entries(self) -> dict[str, T]:
        found: dict[str, T] = {}
        for module in self._modules:
            entries = self._ask(module)
            twice = found.keys() & entries.keys()
            assert not twice, f"{self.kind} registered twice: {sorted(twice)}"
            found.update(entries)
        return found

    def _ask(self, module: str) -> Mapping[str, T]:
        if module not in self._asked:
            self._asked[module] = self._collect(importlib.import_module(f"{self.package}.{module}"))
        return self._asked[module]

    @cached_property
    def _modules(self) -> list[str]:
        folder = importlib.import_module(self.package)
        found = sorted(pkgutil.iter_modules(folder.__path__), key=lambda info: info.name)
        if self._module is None:
            return [info.name for info in found if not info.ispkg]
        modules = [f"{info.name}.{self._module}" for info in found if info.ispkg]
        return [module for module in modules if find_spec(f"{self.package}.{module}") is not None]
