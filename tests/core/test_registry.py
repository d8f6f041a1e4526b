"""A file in a plug-in folder is its own registration."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from vitrail.core.errors import ConfigError
from vitrail.core.registry import Registry


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shapes_of_test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "round.py").write_text("ENTRIES = {'circle': 0}\n")
    (folder / "square.py").write_text("ENTRIES = {'cube': 12, 'tile': 4}\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == folder.name]:
        del sys.modules[name]


def make_registry(folder: Path) -> Registry[int]:
    def collect(module: ModuleType) -> Mapping[str, int]:
        return module.ENTRIES

    return Registry("shape", folder.name, collect)


def test_entries_of_all_files_are_found_in_order(plugins: Path) -> None:
    registry = make_registry(plugins)
    assert dict(registry) == {"circle": 0, "cube": 12, "tile": 4}
    assert list(registry) == ["circle", "cube", "tile"]
    assert "cube" in registry
    assert "sphere" not in registry


def test_nothing_is_imported_before_the_first_look_up(plugins: Path) -> None:
    registry = make_registry(plugins)
    assert plugins.name not in sys.modules
    assert registry["tile"] == 4
    assert f"{plugins.name}.square" in sys.modules


def test_a_module_that_a_name_begins_with_is_imported_alone(plugins: Path) -> None:
    (plugins / "square.py").write_text("ENTRIES = {'square_tile': 4, 'roundel': 1}\n")
    registry = make_registry(plugins)
    assert registry["square_tile"] == 4
    assert f"{plugins.name}.round" not in sys.modules
    assert registry["roundel"] == 1  # not of the module round
    assert [*registry] == ["circle", "square_tile", "roundel"]


def test_a_new_file_is_a_new_entry(plugins: Path) -> None:
    (plugins / "flat.py").write_text("ENTRIES = {'line': 2}\n")
    assert make_registry(plugins)["line"] == 2


def test_an_unknown_name_offers_the_nearest(plugins: Path) -> None:
    with pytest.raises(ConfigError, match=r"no shape named 'circel'.*Did you mean 'circle'"):
        make_registry(plugins)["circel"]


def test_one_name_in_two_files_is_our_own_fault(plugins: Path) -> None:
    (plugins / "again.py").write_text("ENTRIES = {'tile': 5}\n")
    with pytest.raises(AssertionError, match=r"shape registered twice: .'tile'"):
        make_registry(plugins)["tile"]
