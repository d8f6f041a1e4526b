"""The examples in docstrings give what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import vitrail

ROOT = Path(vitrail.__file__).parent
FILES = [path for path in sorted(ROOT.rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8")]


def test_examples_in_docstrings_give_what_they_show(capsys: pytest.CaptureFixture[str]) -> None:
    attempted = 0
    for path in FILES:
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        assert results.failed == 0, capsys.readouterr().out
        attempted += results.attempted
    assert attempted > 150
